"""What else goes on on the GPU, asked of NVML.

Only facts are collected here; `sweeper.analysis.flags` says from when on they matter. Readings are
taken between blocks, never inside one.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from statistics import median
from typing import Any

import torch

from sweeper.core.record import ARMS, GpuState, PerArm
from sweeper.core.system.gpus import GpuReading, read_handle

from .host_monitor import own_processes

# the other reasons for lowered clocks are those of an idle GPU, and of clocks that somebody chose
SLOWDOWNS = {"power_cap", "hardware", "thermal", "hardware_thermal", "power_brake"}


class GpuMonitor:
    """Reads one GPU. Without NVML, or on a CPU, every reading is None.

    `neighbours` gives the process groups of other workers of this sweep that are on the GPU; they
    are stopped while this one measures, and are not others.
    """

    def __init__(
        self, device: torch.device, neighbours: Callable[[], frozenset[int]] = frozenset
    ) -> None:
        self.neighbours = neighbours
        self._readings = defaultdict[str, list[GpuReading]](list)  # by arm
        self._most_others: int | None = None
        self._last_sample_us = 0
        self._knows_us = False  # whether NVML's numbers of processes are those that we know
        self._nvml, self._handle = open_nvml(device)
        self.take_reading()

    def take_reading(self, arm: str | None = None) -> None:
        """Take a reading right after a block of an arm: NVML's clock is that of the last tenth of a
        second. Without an arm, look for other processes alone.
        """
        if self._handle is None:
            return
        reading = read_handle(self._nvml, self._handle)
        if arm:
            self._readings[arm].append(reading)
        if reading.pids is None:
            return
        neighbours = self.neighbours()
        own = own_processes(neighbours)
        if reading.pids & own:
            others = len(reading.pids - own)
        else:  # in a container our own number may be another one, or hidden
            others = max(len(reading.pids) - 1 - len(neighbours), 0)
        self._most_others = max(others, self._most_others or 0)

    def state(self) -> GpuState | None:
        """What was read so far."""
        if self._handle is None:
            return None
        return GpuState(
            self._medians(lambda reading: reading.clock_mhz),
            self._medians(lambda reading: reading.power_w),
            self._medians(lambda reading: reading.temperature_c),
            self._slowdowns(),
            self._most_others,
        )

    def _medians(self, figure: Callable[[GpuReading], float | None]) -> PerArm:
        medians = {}
        for arm in ARMS:
            figures = map(figure, self._readings[arm])
            if known := [value for value in figures if value is not None]:
                medians[arm] = float(median(known))
        return PerArm(**medians)

    def _slowdowns(self) -> tuple[str, ...] | None:
        readings = chain(*self._readings.values())
        known = [one.lowered_clocks for one in readings if one.lowered_clocks is not None]
        if not known:
            return None
        return tuple(sorted(SLOWDOWNS.intersection(chain(*known))))

    def is_shared(self) -> bool:
        """Whether others were seen on the GPU so far."""
        return bool(self._most_others)

    def own_bytes(self) -> int | None:
        """Memory of this GPU that this process has in use; None where NVML does not tell, or knows
        us by no number.
        """
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses") or ()
        return next((item.usedGpuMemory for item in processes if item.pid == os.getpid()), None)

    def energy_j(self) -> float | None:
        """Joules that this GPU has used since its driver was loaded; None where NVML does not count
        them.
        """
        used_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if used_mj is None else float(used_mj) / 1e3

    def used_by_others(self) -> bool:
        """Whether another process ran kernels since this was last asked; False where the driver
        does not tell.
        """
        # None: no samples since then
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._last_sample_us)
        if samples is None:
            return False
        own, others_ran = own_processes(self.neighbours()), False
        for sample in samples:
            self._last_sample_us = max(self._last_sample_us, sample.timeStamp)
            if sample.pid in own:
                self._knows_us = True
            elif sample.smUtil > 0:
                others_ran = True
        return self._knows_us and others_ran

    def _ask(self, function: str, *arguments: object) -> Any:
        """What a function of NVML says of the GPU; None without NVML, or where it does not know."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def open_nvml(device: torch.device) -> tuple[Any, Any]:
    """NVML and the handle of the GPU that torch uses, found by its UUID; None without them."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(
            f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        )
    except ImportError:  # a worker needs torch and the model libraries alone
        return None, None
    except pynvml.NVMLError:  # no library, or a GPU that is not shown here
        return pynvml, None
