"""Device memory of an arm, by one rule for both: what its steps need at most, less what was in use
before the model.

Three parts: the peak of torch's allocator, which alone misses what lives in the pools of CUDA
graphs; these pools, as far as they are reserved; and what libraries and the context took beside the
allocator. Memory that the allocator keeps without using it is left out: how much that is depends on
what ran before, and differed by 17 % between two eager arms.

What lies beside the allocator is asked of NVML. Where NVML does not know this process by its
number, only the whole device is known: what changes while this process has the device is then taken
for its own, and the rest for others'.

On a CPU there is no figure: a process that holds the compiler says little about the model.
"""

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

STEPS = 3


class Reading(NamedTuple):
    """Bytes; None on a CPU."""

    in_use_bytes: float | None = None
    allocator_peak_bytes: float | None = None


class Meter:
    """Follows what this process has in use beside the allocator; made before the model is built.

    `leave_device` and `return_to_device` are called around every time without the device.
    `own_bytes` is what NVML says that this process has in use on it, or None.
    """

    def __init__(
        self, device: torch.device, own_bytes: Callable[[], int | None] = lambda: None
    ) -> None:
        self._own_bytes = own_bytes
        self._counts = device.type == "cuda"
        self._own = self._before = 0
        self.knows_own = False  # bytes of this process; else of the whole device
        if self._counts:
            _collect()
            self.knows_own = own_bytes() is not None
            # the context of this process among it: it needs no model
            self._before = self._bytes_beside_allocator()

    def leave_device(self) -> None:
        if self._counts and not self.knows_own:
            self._own = self._bytes_beside_allocator() - self._before

    def return_to_device(self) -> None:
        if self._counts and not self.knows_own:
            self._before = self._bytes_beside_allocator() - self._own

    def _bytes_beside_allocator(self) -> int:
        """Bytes in use that torch's allocator did not reserve: of this process if known, else of
        the whole device.
        """
        in_use = self._own_bytes() if self.knows_own else _device_bytes_in_use()
        assert in_use is not None  # NVML has known us before
        return in_use - torch.cuda.memory_reserved()

    def measure(self, run_steps: Callable[[int], object]) -> Reading:
        """What three steps need, and torch's allocator peak in them."""
        if not self._counts:
            return Reading()
        _collect()
        torch.cuda.reset_peak_memory_stats()
        run_steps(STEPS)
        torch.cuda.synchronize()
        in_use, peak = read_allocator()
        beside = self._bytes_beside_allocator() - self._before
        return Reading(float(beside + in_use), float(peak))


def read_allocator(graphs: bool = True) -> tuple[int, int]:
    """Bytes that torch's allocator had in use at most, with or without what CUDA graphs have
    reserved, and its peak.
    """
    peak = torch.cuda.max_memory_allocated()
    reserved, allocated = sum_graph_pools(torch.cuda.memory_snapshot())  # type: ignore[no-untyped-call]
    return peak - allocated + (reserved if graphs else 0), peak


def sum_graph_pools(segments: list[dict[str, Any]]) -> tuple[int, int]:
    """Bytes that the pools of CUDA graphs have reserved, and those of them that are allocated
    now.
    """
    # the pool (0, 0) is no graph's: c10/cuda/CUDACachingAllocator.h
    pools = [item for item in segments if tuple(item["segment_pool_id"]) != (0, 0)]
    return sum(item["total_size"] for item in pools), sum(item["allocated_size"] for item in pools)


def _collect() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _device_bytes_in_use() -> int:
    """Bytes of the device that anybody has in use."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def count_failed_allocations() -> int | None:
    """How often the device had no room for what torch's allocator wanted; None where it was not
    used.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    stats = torch.cuda.memory_stats()
    return int(stats.get("num_ooms", 0) + stats.get("num_alloc_retries", 0))


def reset_peak() -> None:
    """Have `torch.cuda.max_memory_allocated`, which is zero without a GPU, begin anew."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
