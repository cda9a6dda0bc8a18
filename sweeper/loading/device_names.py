"""Which device and torch each record comes from, where the records at hand have several: figures of two are not mixed.

Place in the flow: `load` puts the names into the variants of its entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable

GIB = 2**30
ALIKE = 1.05  # memory of two devices of one kind
KINDS = {"cuda": "gpu", "cpu": "cpu"}  # what a name is led by in a variant


@dataclass(frozen=True)
class Device:
    """What makes two devices different ones."""

    type: str
    name: str
    memory_gib: int | None

    def is_like(self, other: Device) -> bool:
        """Whether they may be two of one kind: drivers keep some memory for themselves, and not all as much."""
        sizes = sorted(size for size in (self.memory_gib, other.memory_gib) if size is not None)
        return (self.type, self.name) == (other.type, other.name) and (len(sizes) < 2 or sizes[1] <= ALIKE * sizes[0])

    def among(self, others: Iterable[Device]) -> str:
        """The name, with its memory where others have the same name."""
        namesakes = {other for other in others if other.name == self.name and other != self}
        return f"{self.name} {self.memory_gib or 'unknown'} GiB" if namesakes else self.name


def names_of_devices(records: Sequence[tuple[Record, Path]]) -> list[str]:
    """For each record and the folder of its sweep e.g. `device=cuda; gpu=NVIDIA H200`; empty where all are alike.

    Devices of one name and different memory are told apart by that. A trial that ended before it saw its device has
    that of its sweep, where this has one alone.
    """
    kinds: list[Device] = []
    seen = [_kind(device_of(record.environment, record.trial.device), kinds) for record, _ in records]
    of_sweeps: dict[tuple[Path, str], set[Device]] = defaultdict(set)
    for (_, sweep), device in zip(records, seen, strict=True):
        if device:
            of_sweeps[sweep, device.type].add(device)
    all_of_them = set().union(*of_sweeps.values())
    types = {record.trial.device for record, _ in records}
    found = []
    for (record, sweep), device in zip(records, seen, strict=True):
        kind = record.trial.device
        alike = {other for other in all_of_them if other.type == kind}
        known = device or _only(of_sweeps[sweep, kind])
        parts = [f"device={kind}"] if len(types) > 1 else []
        parts += [f"{KINDS.get(kind, kind)}={known.among(alike) if known else 'unknown'}"] if len(alike) > 1 else []
        found.append("; ".join(parts))
    return found


def _kind(device: Device | None, kinds: list[Device]) -> Device | None:
    """The first device that is like this one; it is added to `kinds` if there was none."""
    if device is None:
        return None
    known = next((kind for kind in kinds if kind.is_like(device)), None)
    if known is None:
        kinds.append(known := device)
    return known


def names_of_torches(records: Sequence[Record]) -> list[str]:
    """For each record `torch=2.13.0` where one trial was run with several versions; else empty.

    An interpreter that the grid asked for (`worker.python`) makes another trial, with a variant of its own.
    """
    versions: dict[str, set[str]] = defaultdict(set)
    for record in records:
        versions[record.trial_id].add(_torch(record))
    if all(len(found) < 2 for found in versions.values()):
        return [""] * len(records)
    return [f"torch={_torch(record)}" for record in records]


def _torch(record: Record) -> str:
    return printable(str(get_mapping(record.environment, "versions").get("torch", "unknown")))


def device_of(environment: Mapping[str, Any], kind: str) -> Device | None:
    """What a record's environment says of the device of that type; None when it says nothing."""
    found = get_mapping(environment, "device")
    if found.get("type") != kind or not found.get("name"):
        return None
    size = found.get("memory_bytes")
    memory_gib = round(size / GIB) if isinstance(size, (int, float)) else None
    return Device(kind, printable(str(found["name"])), memory_gib)


def _only(devices: set[Device]) -> Device | None:
    return next(iter(devices)) if len(devices) == 1 else None
