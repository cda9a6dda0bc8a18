"""Device memory of an arm, by one rule for both: in use after collecting and three steps, less what there was before.

The allocator's own peak misses what lives in CUDA-graph pools; it is kept beside. On a CPU both are None: a process
that holds the compiler says little about the model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

STEPS = 3


def in_use_bytes(device: torch.device) -> float | None:
    """Bytes of the device in use by anybody, after the caching allocator gave back what it does not need."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


@dataclass(frozen=True)
class Reading:
    """Bytes; None on a CPU."""

    in_use_bytes: float | None = None
    allocator_peak_bytes: float | None = None


def of_arm(run_steps: Callable[[int], object], device: torch.device, before: float | None) -> Reading:
    """What is in use after three steps less `before`, and torch's allocator peak in them."""
    if before is None:
        return Reading()
    in_use_bytes(device)
    torch.cuda.reset_peak_memory_stats()
    run_steps(STEPS)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return Reading(float(total - free) - before, float(torch.cuda.max_memory_allocated()))
