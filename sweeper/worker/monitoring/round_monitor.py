"""What is watched between the blocks of a round, and which of it makes a round void.

Void: the allocator ran out of memory and tried again, the gradient scaler skipped a step, another process ran kernels
on the GPU. A recompilation is `timing`'s to see. Clocks, temperature and global switches are noted and void nothing:
dropping rounds for them would favour one arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sweeper.core.serialization import Json
from sweeper.worker.monitoring import torch_flags
from sweeper.worker.monitoring.gpu_monitor import GpuMonitor


class RoundMonitor:
    """Made before the model is built. `gradient_scales` reads the scale of each gradient scaler in use."""

    def __init__(self, device: torch.device, neighbours: Callable[[], frozenset[int]] = frozenset) -> None:
        self.gpu = GpuMonitor(device, neighbours)
        self.gradient_scales: Callable[[], Sequence[float]] = tuple
        self.switches = torch_flags.read()
        self.changed_switches: dict[str, Json] = {}
        self._before: tuple[int, Sequence[float]] = (0, ())

    def settle(self) -> None:
        """What the switches say now is what they have to stay."""
        self.switches = torch_flags.read()

    def moved(self) -> dict[str, Json]:
        """Switches that do not stand as they were settled, with their values now."""
        return torch_flags.changed(self.switches)

    def start_round(self) -> None:
        self._before = _allocator_retries(), self.gradient_scales()
        self.gpu.used_by_others()

    def after_block(self, arm: str) -> None:
        self.gpu.look(arm)
        self.changed_switches |= {f"{name} after {arm}": value for name, value in self.moved().items()}

    def why_void(self) -> str | None:
        """Why the round since `start_round` does not count, or None."""
        retries, scales = self._before
        if _allocator_retries() != retries:
            return "the allocator ran out of memory and retried"
        if self.gradient_scales() != scales:
            return "the gradient scaler skipped a step"
        return "another process used the GPU" if self.gpu.used_by_others() else None


def _allocator_retries() -> int:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
