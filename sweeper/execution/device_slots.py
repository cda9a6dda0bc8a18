"""Slots: the devices that a sweep may use, one owner a GPU, and what of the host and of its memory belongs to each.

Place in the flow: `execute` asks for them before the first trial.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, cores_near, memory_bytes
from sweeper.core.host import free_memory_bytes, physical_cores, read
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.lock import held
from sweeper.execution.memory_budget import MemoryBudget, Peaks
from sweeper.execution.reaper import Reaper
from sweeper.execution.scheduler import Slot

MAX_PREPARED = 8  # more would wait for the device most of the time
CORES_PER_TRIAL = 2  # that prepares: one traces, the compiler's own processes share the rest
HOST_BYTES_PER_TRIAL = 8 * 2**30  # a process with CUDA, torch and the model libraries, and Inductor's processes


@contextmanager
def owned(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Those of the devices that no other driver on this machine has; they are ours as long as the body runs.

    Raises ConfigError that says who has them, when there is none. A CPU has no owner.
    """
    taken: list[ConfigError] = []
    with ExitStack() as locks:
        free = []
        for device in devices:
            try:
                if device.gpu is not None:
                    locks.enter_context(held(_lock(device.gpu.uuid), f"GPU {device.gpu.uuid}"))
                free.append(device)
            except ConfigError as error:
                taken.append(error)
        if not free:
            raise ConfigError("; ".join(map(str, taken)))
        yield tuple(free)


def _lock(uuid: str) -> Path:
    """Of a GPU, for every user of this machine."""
    folder = Path(tempfile.gettempdir()) / "sweeper-gpus"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    return folder / f"{uuid}.lock"


def host_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


class Share(NamedTuple):
    """What a device has of the host, and how many trials it has in hand with that."""

    device: Device
    cores: tuple[int, ...] | None  # None: all
    prepare: int


def slots_of(shares: Sequence[Share], guardian: Reaper | None = None) -> list[Slot]:
    """A slot for each share; they learn from each other how much memory a trial takes."""
    peaks = Peaks()
    rooms = (MemoryBudget(memory_bytes(share.device.gpu) if share.device.gpu else None) for share in shares)
    return [Slot(*share, DeviceLease(guardian), room, peaks) for share, room in zip(shares, rooms, strict=True)]


def shares_of(devices: Sequence[Device], cores: Sequence[int], trials: int, prepare: int | None = None) -> list[Share]:
    """Each device's share of the cores and of the host's memory.

    `prepare` is how many trials each has in hand; None: as many as the share is good for, on a CPU one. Never more than
    `trials`.
    """
    on_host, quota = free_memory_bytes(), read().quota_cores or math.inf
    shares = []
    for device, own in zip(devices, shared_out(devices, cores), strict=True):
        usable = min(len(own or cores), quota / len(devices))
        in_hand = prepare or _in_hand(device, usable, None if on_host is None else on_host / len(devices))
        shares.append(Share(device, own, max(1, min(in_hand, trials))))
    return shares


def _in_hand(device: Device, cores: float, on_host_bytes: float | None) -> int:
    if device.gpu is None:
        return 1  # what prepares would take the cores from what measures
    fit = MAX_PREPARED if on_host_bytes is None else int(on_host_bytes / HOST_BYTES_PER_TRIAL)
    return max(1, min(MAX_PREPARED, int(cores / CORES_PER_TRIAL), fit))


def shared_out(devices: Sequence[Device], cores: Sequence[int]) -> list[tuple[int, ...] | None]:
    """Cores for each device. One device has the whole host (None); of several each its share, near to it if known.

    Threads of one physical core go to one device: what compiles for another would slow down what measures.
    """
    if len(devices) == 1:
        return [None]
    near = [frozenset(cores_near(device.gpu)).intersection(cores) if device.gpu else frozenset() for device in devices]
    groups = [tuple(sorted(found or cores)) for found in near]
    shares: list[tuple[int, ...] | None] = []
    for index, group in enumerate(groups):
        sharing = [other for other, of_other in enumerate(groups) if of_other == group]
        physical, position = physical_cores(group), sharing.index(index)
        share = len(physical) // len(sharing)
        own = physical[position * share : (position + 1) * share]
        shares.append(tuple(number for threads in own for number in threads) or group)
    return shares
