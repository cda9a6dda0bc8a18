"""Torch's global switches: they must be the same in both arms, so they are read again after each block.

Place in the flow: what is read first goes into the record; `timing` compares what it reads later with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sweeper.core.serialization import Json

_READERS: Mapping[str, Callable[[], Json]] = {
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "matmul_allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "matmul_reduced_bf16": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "matmul_reduced_fp16": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    "attention_kernels_allowed": lambda: ", ".join(_allowed_attention()),
    "threads": torch.get_num_threads,
}


def read() -> dict[str, Json]:
    """Every switch by name; None for one that has no value beside torch's newer `fp32_precision` settings."""
    values: dict[str, Json] = {}
    for name, reader in _READERS.items():
        try:
            values[name] = reader()
        except RuntimeError:
            values[name] = None
    return values


def changed(before: Mapping[str, Json]) -> dict[str, Json]:
    """What differs from `before` now, e.g. `{"matmul_allow_tf32": True}`."""
    return {name: value for name, value in read().items() if value != before[name]}


def _allowed_attention() -> list[str]:
    allowed = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "math": torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
    }
    return [name for name, on in allowed.items() if on]
