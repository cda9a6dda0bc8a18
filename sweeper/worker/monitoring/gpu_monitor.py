"""What else goes on: on the GPU (asked of NVML) and on the host (asked of the kernel).

Only facts are collected here; `sweeper.analysis.flags` says from when on they matter. Readings are taken
between blocks, never inside one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from sweeper.core.gpus import GpuReading, read_handle
from sweeper.core.record import GpuState, PerArm
from sweeper.worker.monitoring.host_monitor import own_processes

# Reasons that slow a step down; the other ones are those of an idle GPU and of clocks that somebody chose.
SLOWDOWNS = ("power_cap", "hardware", "thermal", "hardware_thermal", "power_brake")


class GpuMonitor:
    """Looks at one GPU. Without NVML, or on a CPU, it sees nothing and says so with None.

    `neighbours` gives the process groups of other workers of this sweep that are on the GPU; they are stopped while
    this one measures, and are not others.
    """

    def __init__(self, device: torch.device, neighbours: Callable[[], frozenset[int]] = frozenset) -> None:
        self._neighbours = neighbours
        self._readings: dict[str, list[GpuReading]] = {"before": [], "eager": [], "compiled": []}
        self._others: list[int | None] = []
        self._last_sample_us = 0
        self._sees_us = False  # whether NVML's numbers of processes are those that we know
        self._nvml, self._handle = _connect(device)
        self.look("before")

    def look(self, arm: str) -> None:
        """Take a reading right after a block of an arm: NVML's clock is that of the last tenth of a second."""
        if self._handle is not None:
            reading = read_handle(self._nvml, self._handle)
            self._readings[arm].append(reading)
            self._others.append(_others(reading, self._neighbours()))

    def state(self) -> GpuState | None:
        """What was seen so far."""
        if self._handle is None:
            return None
        arms = self._readings["eager"], self._readings["compiled"]
        return GpuState(
            clock_mhz=_medians(arms, lambda reading: reading.clock_mhz),
            power_w=_medians(arms, lambda reading: reading.power_w),
            temperature_c=_medians(arms, lambda reading: reading.temperature_c),
            slowdowns=_slowdowns([reading for arm in arms for reading in arm]),
            other_processes=max((count for count in self._others if count is not None), default=None),
        )

    def own_bytes(self) -> int | None:
        """Memory of this GPU that this process has in use; None where NVML does not tell, or knows us by no number."""
        if self._handle is None:
            return None
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        return next((item.usedGpuMemory for item in processes if item.pid == os.getpid()), None)

    def energy_j(self) -> float | None:
        """Joules that this GPU has used since its driver was loaded; None where NVML does not count them."""
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError:
            return None

    def used_by_others(self) -> bool:
        """Whether another process ran kernels since this was last asked; False where the driver does not tell."""
        if self._handle is None:
            return False
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._last_sample_us)
        except self._nvml.NVMLError:  # no samples since then, or a driver that keeps none
            return False
        self._last_sample_us = max((sample.timeStamp for sample in samples), default=self._last_sample_us)
        own = own_processes(self._neighbours())
        self._sees_us |= any(sample.pid in own for sample in samples)
        return self._sees_us and any(sample.pid not in own and sample.smUtil > 0 for sample in samples)


def _slowdowns(readings: Sequence[GpuReading]) -> tuple[str, ...] | None:
    known = [reading.lowered_clocks for reading in readings if reading.lowered_clocks is not None]
    return tuple(sorted({name for names in known for name in names}.intersection(SLOWDOWNS))) if known else None


def _others(reading: GpuReading, neighbours: frozenset[int]) -> int | None:
    """Compute processes beside us and our neighbours. In a container our own number may be another one, or hidden."""
    if reading.pids is None:
        return None
    own = own_processes(neighbours)
    return len(reading.pids - own) if reading.pids & own else max(len(reading.pids) - 1 - len(neighbours), 0)


def _connect(device: torch.device) -> tuple[Any, Any]:
    """NVML and the handle of the GPU that torch uses, found by its UUID; None without them."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml
    except ImportError:  # a worker needs torch and the model libraries alone
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return pynvml, None


def _medians(arms: Sequence[Sequence[GpuReading]], figure: Callable[[GpuReading], float | None]) -> PerArm:
    known = [[value for reading in arm if (value := figure(reading)) is not None] for arm in arms]
    return PerArm(*(float(median(values)) if values else None for values in known))
