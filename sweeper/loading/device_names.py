"""Names of devices and torch versions, where records come from several: figures of two are never
mixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable

GIB = 2**30
# between two devices of one kind: drivers keep some memory for themselves, and not all as much
MAX_MEMORY_RATIO = 1.05
VARIANT_KEYS = {"cuda": "gpu", "cpu": "cpu"}  # of the name of a device, by its type


@dataclass(frozen=True)
class DeviceKind:
    """The properties that tell two devices apart."""

    type: str
    name: str
    memory_gib: int | None

    def is_like(self, other: DeviceKind) -> bool:
        """Say whether both may be devices of one kind."""
        sizes = sorted(size for size in (self.memory_gib, other.memory_gib) if size is not None)
        alike = len(sizes) < 2 or sizes[1] <= MAX_MEMORY_RATIO * sizes[0]
        return alike and (self.type, self.name) == (other.type, other.name)

    def name_among(self, others: Iterable[DeviceKind]) -> str:
        """Return the name, with the memory where another device has the same name."""
        namesakes = {other for other in others if other.name == self.name and other != self}
        return f"{self.name} {self.memory_gib or 'unknown'} GiB" if namesakes else self.name


def name_origins(records: Sequence[tuple[Record, Path]]) -> list[tuple[str, ...]]:
    """Name the device and the torch of each record, which comes with the folder of its sweep.

    An origin is e.g. `("device=cuda", "gpu=NVIDIA H200", "torch=2.13.0")`. It holds only what
    differs: the type of the device, devices of one type, and torch where one trial was run with
    several versions. An interpreter that the grid asked for (`worker.python`) makes another trial,
    with a variant of its own. A trial that ended before it saw its device has the only one of its
    sweep.
    """
    kinds: list[DeviceKind] = []  # of devices that are alike, the first
    seen: list[set[DeviceKind]] = []
    by_sweep: dict[tuple[Path, str], set[DeviceKind]] = defaultdict(set)
    torches: list[tuple[str, str]] = []
    for record, sweep in records:
        device, known = read_device(record), by_sweep[sweep, record.trial.device]
        if device is not None:
            kind = next(filter(device.is_like, kinds), device)
            if kind not in kinds:
                kinds.append(kind)
            known.add(kind)
            known = {kind}
        seen.append(known)
        version = get_mapping(record.environment, "versions").get("torch", "unknown")
        torches.append((record.trial_id, f"torch={printable(str(version))}"))
    types = {record.trial.device for record, _ in records}
    are_mixed = len(set(torches)) > len(dict(torches))  # some trial has two versions
    origins: list[tuple[str, ...]] = []
    for (record, _), known, (_, torch) in zip(records, seen, torches, strict=True):
        type_, name = record.trial.device, "unknown"
        parts = []
        same_type = [kind for kind in kinds if kind.type == type_]
        if len(known) == 1:
            (kind,) = known
            name = kind.name_among(same_type)
        if len(types) > 1:
            parts.append(f"device={type_}")
        if len(same_type) > 1:
            parts.append(f"{VARIANT_KEYS.get(type_, type_)}={name}")
        if are_mixed:
            parts.append(torch)
        origins.append(tuple(parts))
    return origins


def read_device(record: Record) -> DeviceKind | None:
    """Read the device that ran a trial. None when the record does not tell it."""
    found = get_mapping(record.environment, "device")
    if found.get("type") != record.trial.device or not found.get("name"):
        return None
    size, memory_gib = found.get("memory_bytes"), None
    if isinstance(size, int | float):
        memory_gib = round(size / GIB)
    return DeviceKind(record.trial.device, printable(str(found["name"])), memory_gib)
