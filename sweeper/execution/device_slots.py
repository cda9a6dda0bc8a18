"""Device slots: the devices that a sweep has claimed, each with what its trials share. A GPU has one owner."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, memory_bytes
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.lock import hold_lock
from sweeper.execution.memory_budget import MemoryBudget, PeakMemory
from sweeper.execution.placement import Placement
from sweeper.execution.reaper import Reaper


@dataclass(frozen=True)
class DeviceSlot:
    """A device, its cores of the host (None: all), and what its trials share."""

    device: Device
    cores: tuple[int, ...] | None = None
    concurrency: int = 1  # trials in flight
    lease: DeviceLease = field(default_factory=DeviceLease, compare=False)
    memory: MemoryBudget = field(default_factory=MemoryBudget, compare=False)
    peak_memory: PeakMemory = field(default_factory=PeakMemory, compare=False)


@contextmanager
def claim_devices(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Claim the devices that no other driver of this machine has, as long as the body runs. A CPU has no owner.

    Raises ConfigError that says who has them, when none is free.
    """
    taken: list[ConfigError] = []
    with ExitStack() as locks:
        free = []
        for device in devices:
            try:
                if device.gpu is not None:
                    locks.enter_context(hold_lock(_lock_file(device.gpu.uuid), f"GPU {device.gpu.uuid}"))
                free.append(device)
            except ConfigError as error:
                taken.append(error)
        if not free:
            raise ConfigError("; ".join(map(str, taken)))
        yield tuple(free)


def _lock_file(uuid: str) -> Path:
    """The lock of a GPU, for every user of this machine."""
    folder = Path(tempfile.gettempdir()) / "sweeper-gpus"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    return folder / f"{uuid}.lock"


def make_slots(placement: Placement, claimed: Sequence[Device], reaper: Reaper | None = None) -> list[DeviceSlot]:
    """Make a slot for each claimed device; all slots learn from each other how much memory a trial needs."""
    peak_memory = PeakMemory()
    slots = []
    for share in placement.shares:
        if share.device in claimed:
            memory = MemoryBudget(memory_bytes(share.device.gpu) if share.device.gpu else None)
            lease = DeviceLease(reaper)
            slots.append(DeviceSlot(share.device, share.cores, share.concurrency, lease, memory, peak_memory))
    return slots
