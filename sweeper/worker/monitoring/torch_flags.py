"""Torch's global flags: they must be the same in both arms, so they are read again after each
block.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter

import torch

from sweeper.core.serialization import Json

_ATTENTION: Mapping[str, Callable[[], bool]] = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}
_PLACES = {  # in torch; of a function what it returns
    "float32_matmul_precision": "get_float32_matmul_precision",
    "matmul_allow_tf32": "backends.cuda.matmul.allow_tf32",
    "matmul_reduced_bf16": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "matmul_reduced_fp16": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cudnn_allow_tf32": "backends.cudnn.allow_tf32",
    "cudnn_benchmark": "backends.cudnn.benchmark",
    "cudnn_deterministic": "backends.cudnn.deterministic",
    "deterministic_algorithms": "are_deterministic_algorithms_enabled",
}


def read() -> dict[str, Json]:
    """Read every flag; None for one that has no value beside torch's newer `fp32_precision`
    settings.
    """
    values: dict[str, Json] = {}
    for name, place in _PLACES.items():
        try:
            value = attrgetter(place)(torch)
            values[name] = value() if callable(value) else value
        except RuntimeError:
            values[name] = None
    allowed = [name for name, allows in _ATTENTION.items() if allows()]
    return values | {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "attention_kernels_allowed": ", ".join(allowed),
        "threads": torch.get_num_threads(),
    }
