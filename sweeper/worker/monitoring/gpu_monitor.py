"""What else goes on: on the GPU (asked of NVML) and on the host (asked of the kernel).

Only facts are collected here; `sweeper.analysis.flags` says from when on they matter. Readings are taken
between blocks, never inside one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from sweeper.core.gpus import GpuReading, look
from sweeper.core.record import GpuState, PerArm

# Reasons that slow a step down; the other ones are those of an idle GPU and of clocks that somebody chose.
SLOWDOWNS = ("power_cap", "hardware", "thermal", "hardware_thermal", "power_brake")
QUOTA_FILES = (
    ("/sys/fs/cgroup/cpu.stat", "throttled_usec", 1e-6),
    ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e-9),
)
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class GpuWatch:
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
            reading = look(self._nvml, self._handle)
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


class HostWatch:
    """Processor time that others took between two looks, as a share of the cores we may use, and time lost to a quota.

    A neighbour on cores of its own, as when each GPU of a machine has its share, does not count.
    """

    def __init__(self) -> None:
        self._start, self._waited_s = _look(), _quota_waited_s()

    def share_busy_by_others(self, away_s: float = 0.0) -> float | None:
        """Since this was made; None where the kernel does not tell.

        What others took in all that time counts as if in the part of it in which we were not away: an upper bound.
        """
        now = _look()
        passed_s = now.clock_s - self._start.clock_s - away_s
        if now.busy_s <= 0 or passed_s <= 0:
            return None
        others_s = now.busy_s - self._start.busy_s - spent_s(self._start.own, now.own)
        return max(0.0, others_s / passed_s / len(os.sched_getaffinity(0)))

    def throttled_s(self) -> float | None:
        """Seconds since this was made for which the cgroup's quota kept us waiting."""
        waited_s = _quota_waited_s()
        return None if waited_s is None or self._waited_s is None else waited_s - self._waited_s


@dataclass(frozen=True)
class Spent:
    """Processor seconds of a process so far, those of ended children that it has collected included."""

    parent: int
    seconds: float


def spent_s(before: Mapping[int, Spent], now: Mapping[int, Spent]) -> float:
    """Processor seconds that a session has spent between two looks, by the numbers of its processes.

    What has ended was either collected, and all its time is now in its parent's, or is gone with what it spent.
    """
    grown_s = sum(item.seconds - before[pid].seconds if pid in before else item.seconds for pid, item in now.items())
    ended = [item for pid, item in before.items() if pid not in now]
    return grown_s - sum(item.seconds for item in ended if item.parent in now)


class _Look(NamedTuple):
    clock_s: float
    busy_s: float  # of everybody on our cores
    own: Mapping[int, Spent]


def _look() -> _Look:
    own = {
        pid: Spent(int(fields[1]), sum(map(int, fields[11:15])) / TICKS_A_SECOND)
        for pid, fields in _of_sessions({os.getsid(0)})
    }
    return _Look(time.monotonic(), _busy_s(), own)


def _busy_s() -> float:
    """Processor seconds of everybody on our cores since the machine started: the lines `cpuN` of proc_stat(5)."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return sum(_busy_ticks(line) for line in lines if line and line[0] in ours) / TICKS_A_SECOND


def _busy_ticks(line: list[str]) -> int:
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line[1:8])
    return user + nice + system + irq + softirq


def own_processes(neighbours: frozenset[int] = frozenset()) -> set[int]:
    """Numbers of the processes of this session, ours and those that compile for us, and of those of neighbours."""
    return {pid for pid, _ in _of_sessions({os.getsid(0), *neighbours})}


def _of_sessions(sessions: set[int]) -> Iterator[tuple[int, list[str]]]:
    """Processes of these sessions with the fields of their /proc/<pid>/stat that follow the name."""
    names = set(map(str, sessions))
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if fields[3] in names:
                    yield int(folder.name), fields


def _quota_waited_s() -> float | None:
    """`throttled_usec` of cgroup v2 (kernel documentation, admin-guide/cgroup-v2), or v1's `throttled_time`."""
    for path, name, unit in QUOTA_FILES:
        with suppress(OSError):
            found = dict(line.split() for line in Path(path).read_text().splitlines())
            if name in found:
                return int(found[name]) * unit
    return None
