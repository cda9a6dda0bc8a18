"""What is read between the blocks of a round, and which of it makes a round void.

Void: something was compiled, the allocator ran out of memory and tried again, the gradient scaler
skipped a step, another process ran kernels on the GPU. On a CPU also where others kept it busy, so
many times as `rounds_again` says. Clocks, temperature and torch's flags are noted and void nothing:
dropping rounds for them would favour one arm.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

import torch

from sweeper.core.record import MAX_BUSY_HOST, OTHERS_BUSY
from sweeper.core.serialization import Json

from . import torch_flags
from .gpu_monitor import GpuMonitor
from .host_monitor import HostMonitor


class RoundMonitor:
    """Made before the model is built. `read_gradient_scales` reads the scale of each gradient
    scaler in use.
    """

    def __init__(
        self, device: torch.device, neighbours: Callable[[], frozenset[int]] = frozenset
    ) -> None:
        self.gpu = GpuMonitor(device, neighbours)
        self.read_gradient_scales: Callable[[], Sequence[float]] = tuple
        self.read_programs: Callable[[], frozenset[str]] = frozenset  # that were compiled
        self.rounds_again = 0  # that may still be void since others are busy
        self._device = device
        self._host = HostMonitor()
        self._busy: list[float] = []  # shares that others took of the rounds that count
        self.torch_flags = torch_flags.read()
        self.changed_flags: dict[str, Json] = {}
        self._before: dict[str, object] = {}

    def set_baseline(self) -> None:
        """Take torch's flags as they are now for those that both arms shall have."""
        self.torch_flags = torch_flags.read()

    def read_changed_flags(self) -> dict[str, Json]:
        """Read the flags that differ from the baseline, e.g. `{"matmul_allow_tf32": True}`."""
        return {
            name: value
            for name, value in torch_flags.read().items()
            if value != self.torch_flags[name]
        }

    def start_round(self) -> None:
        self._before = self._read_disturbances()
        self.gpu.used_by_others()
        self._host = HostMonitor()

    def start_block(self) -> None:
        """Right before the clock of a block starts."""

    def read_after_block(self, arm: str) -> None:
        self.gpu.take_reading(arm)
        self.changed_flags |= {
            f"{name} after {arm}": value for name, value in self.read_changed_flags().items()
        }

    def explain_void(self) -> str | None:
        """Why the round since `start_round` does not count, or None."""
        for reason, value in self._read_disturbances().items():
            if value != self._before[reason]:
                return reason
        if self.gpu.used_by_others():
            return "another process used the GPU"
        busy = self._host.share_busy_by_others()
        if busy is None:
            return None
        if self._device.type == "cpu" and busy > MAX_BUSY_HOST and self.rounds_again > 0:
            self.rounds_again -= 1
            return OTHERS_BUSY
        self._busy.append(busy)
        return None

    def _read_disturbances(self) -> dict[str, object]:
        """Read what stays the same in a round that counts, by the reason that it is void for
        else.
        """
        return {
            "recompiled": self.read_programs(),
            # without CUDA there are no statistics
            "the allocator ran out of memory and retried": torch.cuda.memory_stats().get(
                "num_alloc_retries"
            ),
            "the gradient scaler skipped a step": self.read_gradient_scales(),
        }

    @property
    def share_busy_by_others(self) -> float | None:
        """The share of the cores that others took in the rounds that count, on average."""
        return fmean(self._busy) if self._busy else None
