"""Where a trial ran: versions, device, processor, and the environment variables that change what
torch does. It chooses the packages whose versions a record has.
"""

import os
import platform
import shlex
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from sweeper.core.libraries import library_packages, read_versions
from sweeper.core.system import gpus, host
from sweeper.core.system.orphans import read_start_ticks

from .gpu_monitor import open_nvml

PREFIXES = (
    "TORCH",
    "PYTORCH",
    "TRITON",
    "CUDA",
    "CUBLAS",
    "NVIDIA_TF32",
    "OMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
)


def describe() -> dict[str, Any]:
    """Describe the `environment` of a record without its `device`; touches no device."""
    versions = read_versions(
        ("sweeper", "torch", *library_packages(), "triton", "numpy", "hydra-core", "omegaconf")
    )
    versions["torch"] = torch.__version__
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return {
        "versions": {"python": platform.python_version(), **versions},
        "cpu": {
            "name": host.read().cpu,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "variables": {
            key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES)
        },
        "system": platform.platform(),
        "inductor_config": _inductor_config(),
        "commit": _commit(),
    }


def process_age_s() -> float:
    """Wall seconds since this process was started."""
    started_s = read_start_ticks(os.getpid()) / host.TICKS_PER_SECOND
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _inductor_config() -> list[str]:
    """Inductor's settings that differ from their defaults; what environment variables do is in
    `variables`.
    """
    from torch._inductor import config

    changed = []
    # of settings that torch is to remove
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        for name, entry in config._config.items():  # type: ignore[attr-defined]
            if entry.justknob or entry.alias or entry.default is None:
                continue
            value = getattr(config, name)
            if value != entry.default:
                changed.append(f"{name}={value!r}"[:200])
    return sorted(changed)


def _commit() -> str | None:
    """The git commit that sweeper runs from, with `+` for changes on top; None outside of a
    checkout.
    """
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None
    try:
        command = shlex.split("git describe --always --abbrev=12 --exclude=* --dirty=+")
        described = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
        return described.stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or a folder that git does not trust
        return None


def describe_device(device: torch.device) -> dict[str, Any]:
    """The entry `device` of the environment. Asking a GPU takes memory on it, so the device has to
    be ours.
    """
    if device.type != "cuda":
        return {"type": device.type, "name": host.read().cpu}
    properties = torch.cuda.get_device_properties(device)
    described: dict[str, Any] = {
        "type": "cuda",
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }
    nvml, handle = open_nvml(device)
    if handle is not None:
        reading = gpus.read_handle(nvml, handle)
        described |= {"driver": reading.driver, "power_limit_w": reading.power_limit_w}
    return described
