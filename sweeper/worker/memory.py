"""Device memory of an arm, by one rule for both: what its steps need at most, less what was in use before the model.

Three parts: the peak of torch's allocator, which alone misses what lives in the pools of CUDA graphs; these pools, as
far as they are reserved; and what libraries and the context took beside the allocator. Memory that the allocator keeps
without using it is left out: how much that is depends on what ran before, and differed by 17 % between two eager arms.

On a CPU there is no figure: a process that holds the compiler says little about the model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

STEPS = 3
ORDINARY_POOL = (0, 0)  # the id of the pool that is no graph's: c10/cuda/CUDACachingAllocator.h


@dataclass(frozen=True)
class Reading:
    """Bytes; None on a CPU."""

    in_use_bytes: float | None = None
    allocator_peak_bytes: float | None = None


def before_building(device: torch.device) -> float | None:
    """Bytes of the device that are in use by anybody, the context of this process included; None on a CPU."""
    if device.type != "cuda":
        return None
    _collect()
    return float(_beside_the_allocator() + torch.cuda.memory_allocated())


def of_arm(run_steps: Callable[[int], object], before: float | None) -> Reading:
    """What three steps need, less `before`, and torch's allocator peak in them."""
    if before is None:
        return Reading()
    _collect()
    torch.cuda.reset_peak_memory_stats()
    run_steps(STEPS)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    reserved, allocated = of_graph_pools(torch.cuda.memory_snapshot())  # type: ignore[no-untyped-call]
    return Reading(float(_beside_the_allocator() + reserved + peak - allocated - before), float(peak))


def of_graph_pools(segments: list[dict[str, Any]]) -> tuple[int, int]:
    """Bytes that the pools of CUDA graphs have reserved, and those of them that are allocated now."""
    pools = [item for item in segments if tuple(item["segment_pool_id"]) != ORDINARY_POOL]
    return sum(item["total_size"] for item in pools), sum(item["allocated_size"] for item in pools)


def _collect() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _beside_the_allocator() -> int:
    """Bytes of the device in use that torch's allocator did not reserve: contexts, libraries, other processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
