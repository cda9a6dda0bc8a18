"""Slots: the devices that a sweep may use, one owner a GPU, and the host's cores shared out among them.

Place in the flow: `execute` asks for them before the first trial.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sweeper.devices import Device, cores_near
from sweeper.errors import ConfigError
from sweeper.lock import held
from sweeper.scheduler import Slot


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


def shared_out(devices: Sequence[Device], cores: Sequence[int]) -> list[Slot]:
    """A slot for each device. One device has the whole host; of several each has its share, near to it if known."""
    if len(devices) == 1:
        return [Slot(devices[0])]
    near = [frozenset(cores_near(device.gpu)).intersection(cores) if device.gpu else frozenset() for device in devices]
    groups = [tuple(sorted(found or cores)) for found in near]
    slots = []
    for index, (device, group) in enumerate(zip(devices, groups, strict=True)):
        sharing = [other for other, of_other in enumerate(groups) if of_other == group]
        share, position = len(group) // len(sharing), sharing.index(index)
        slots.append(Slot(device, group[position * share : (position + 1) * share] or group))
    return slots
