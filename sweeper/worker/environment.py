"""Where a trial ran: versions, device, processor, and the environment variables that change what torch does."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("sweeper", "torch", "torchvision", "timm", "transformers", "triton", "numpy")
PREFIXES = ("TORCH", "PYTORCH", "TRITON", "CUDA", "CUBLAS", "NVIDIA_TF32", "OMP_", "MKL_", "KMP_", "ATEN_")


def describe(device: torch.device) -> dict[str, Any]:
    """The `environment` of a record."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "device": _device(device),
        "cpu": {"name": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES)},
        "system": platform.platform(),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed here: the versions then say nothing of it
    versions["torch"] = torch.__version__
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return versions


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"type": device.type, "name": _cpu_name()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
