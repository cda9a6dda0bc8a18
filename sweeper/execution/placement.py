"""Placement: the devices that trials run on, what each has of the host, and what its trials
share.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sweeper.core.errors import ConfigError
from sweeper.core.settings import Settings
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, cores_near, resolve, visible_gpus
from sweeper.core.system.host import free_memory_bytes, physical_cores, read

from .device_lease import DeviceLease
from .memory_budget import KnownNeeds, MemoryBudget
from .reaper import Reaper

MAX_CONCURRENCY = 8  # more trials would wait for the device most of the time
CORES_PER_TRIAL = 2  # one traces, the compiler's own processes share the rest
# a process with CUDA, torch and the model libraries, and Inductor's processes
HOST_BYTES_PER_TRIAL = 8 * 2**30
# of a device, for each trial that shares it: what the check of a model in the suites needs at most,
# but for a few
DEVICE_BYTES_PER_SHARER = 40e9


@dataclass(frozen=True)
class DeviceShare:
    """A device, its cores of the host (None: all), and how many trials it has in flight."""

    device: Device
    cores: tuple[int, ...] | None = None
    concurrency: int = 1


@dataclass(frozen=True)
class DeviceSlot(DeviceShare):
    """A claimed device, and what its trials share."""

    lease: DeviceLease = field(default_factory=DeviceLease, compare=False)
    memory: MemoryBudget = field(default_factory=MemoryBudget, compare=False)
    known_needs: KnownNeeds = field(default_factory=KnownNeeds, compare=False)

    @property
    def num_devices(self) -> int:
        return 1 + len(self.device.others)


@dataclass(frozen=True)
class Placement:
    """Where the trials of a sweep run. `name` is for people; `shares` is empty where a cluster
    places the trials.
    """

    name: str
    shares: tuple[DeviceShare, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(share.device for share in self.shares)

    @property
    def device_names(self) -> tuple[str, ...]:
        """What the devices are called in records, each name once."""
        names = (device.gpu.name if device.gpu else read().cpu for device in self.devices)
        return tuple(dict.fromkeys(names))

    @property
    def concurrency(self) -> int:
        """Trials in flight over all devices."""
        return sum(share.concurrency for share in self.shares)


def place_trials(settings: Settings, num_trials: int) -> Placement:
    """Place trials on the devices of this machine that the settings name. Raises ConfigError when
    there is none.
    """
    devices = resolve(settings.device, visible_gpus())
    names = [device.gpu.name if device.gpu else "the CPU" for device in devices]
    name = names[0]
    if len(names) > 1:
        name = f"{len(names)} GPUs ({', '.join(dict.fromkeys(names))})"
    cores = sorted(os.sched_getaffinity(0))
    return Placement(name, share_host(devices, cores, num_trials, settings.scheduler.prepare))


def share_host(
    devices: Sequence[Device], cores: Sequence[int], num_trials: int, concurrency: int | None = None
) -> tuple[DeviceShare, ...]:
    """Share cores and memory of the host between devices.

    `concurrency` is the number of trials in flight per device; None: as many as the share is good
    for. It never exceeds `num_trials`.
    """
    host_bytes, quota = free_memory_bytes(), read().quota_cores or math.inf
    shares = []
    for device, own in zip(devices, divide_cores(devices, cores), strict=True):
        possible = concurrency or 1
        # on a CPU, what prepares would take the cores from what measures
        if concurrency is None and device.gpu:
            num_cores = min(len(own or cores), quota / len(devices))
            by_memory = host_bytes / len(devices) / HOST_BYTES_PER_TRIAL
            possible = int(min(MAX_CONCURRENCY, num_cores / CORES_PER_TRIAL, by_memory))
        shares.append(DeviceShare(device, own, max(1, min(possible, num_trials))))
    return tuple(shares)


def divide_cores(devices: Sequence[Device], cores: Sequence[int]) -> list[tuple[int, ...] | None]:
    """Divide cores between devices. One device has the whole host (None), one of several a part,
    near to it if known.

    Threads of one physical core go to one device: what compiles for another would slow down what
    measures.
    """
    if len(devices) == 1:
        return [None]
    groups = []
    for device in devices:
        near = set(cores)
        if device.gpu:
            near.intersection_update(cores_near(device.gpu))
        groups.append(tuple(sorted(near or cores)))
    parts: list[tuple[int, ...] | None] = []
    for index, group in enumerate(groups):
        physical = physical_cores(group)
        size = len(physical) // groups.count(group)
        first = groups[:index].count(group) * size
        own = chain.from_iterable(physical[first : first + size])
        parts.append(tuple(own) or group)
    return parts


def join_slots(slots: Sequence[DeviceSlot], count: int) -> DeviceSlot:
    """Make one slot of so many devices, for one trial at a time. Raises ConfigError where there are
    fewer.
    """
    if len(slots) < count:
        raise ConfigError(
            f"a trial starts {count} processes, each with a GPU, and {len(slots)} can be had"
        )
    first, *others = slots[:count]
    cores = tuple(chain.from_iterable(slot.cores or () for slot in slots[:count]))
    other_gpus = tuple(slot.device.gpu for slot in others if slot.device.gpu)
    device = replace(first.device, others=other_gpus)
    return replace(first, device=device, cores=cores or None, concurrency=1)


def make_slots(
    placement: Placement,
    claimed: Sequence[Device],
    reaper: Reaper | None,
    known_needs: KnownNeeds,
) -> list[DeviceSlot]:
    """Make a slot for each claimed device; all slots learn from each other how much memory a trial
    needs.
    """
    slots = []
    for share in placement.shares:
        if share.device in claimed:
            gpu = share.device.gpu
            total_bytes = gpus.read(gpu).memory_total_bytes if gpu else None
            num_sharers = max(1, int((total_bytes or 0.0) / DEVICE_BYTES_PER_SHARER))
            memory = MemoryBudget(total_bytes)
            lease = DeviceLease(reaper, num_sharers, memory)
            slots.append(
                DeviceSlot(**vars(share), lease=lease, memory=memory, known_needs=known_needs)
            )
    return slots
