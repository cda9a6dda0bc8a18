"""Torch's global flags: they must be the same in both arms, so they are read again after each
block.
"""

from collections.abc import Callable, Mapping

import torch

from sweeper.core.serialization import Json

_ATTENTION: Mapping[str, Callable[[], bool]] = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}
_READERS: Mapping[str, Callable[[], Json]] = {
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "matmul_allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "matmul_reduced_bf16": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "matmul_reduced_fp16": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    "attention_kernels_allowed": lambda: ", ".join(
        name for name, allows in _ATTENTION.items() if allows()
    ),
    "threads": torch.get_num_threads,
}


def read() -> dict[str, Json]:
    """Read every flag; None for one that has no value beside torch's newer `fp32_precision`
    settings.
    """
    values = {}
    for name, reader in _READERS.items():
        try:
            values[name] = reader()
        except RuntimeError:
            values[name] = None
    return values
