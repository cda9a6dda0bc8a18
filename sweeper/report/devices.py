"""Which device each record comes from, where the records at hand come from several: figures of two are not mixed.

Place in the flow: `load` puts the names into the variants of its entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.record import Record
from sweeper.report.readable import printable

GIB = 2**30


def names_of_devices(records: Sequence[tuple[Record, Path]]) -> list[str]:
    """For each record and the folder of its sweep `device=cuda`, `gpu=NVIDIA H200` or both; empty where all are alike.

    GPUs of one name and different memory are told apart by that. A trial that ended before it saw its GPU has that of
    its sweep, where this has one kind alone.
    """
    types = {record.trial.device for record, _ in records}
    gpus = [_gpu(record) for record, _ in records]
    of_sweeps: dict[Path, set[tuple[str, int | None]]] = defaultdict(set)
    for (_, sweep), gpu in zip(records, gpus, strict=True):
        if gpu:
            of_sweeps[sweep].add(gpu)
    kinds = set().union(*of_sweeps.values())
    names = {name for name, _ in kinds}
    found = []
    for (record, sweep), gpu in zip(records, gpus, strict=True):
        known = gpu or _only(of_sweeps[sweep])
        parts = [f"device={record.trial.device}"] if len(types) > 1 else []
        if len(kinds) > 1 and record.trial.device == "cuda":
            parts.append(f"gpu={_text(known, sure=len(names) == len(kinds))}" if known else "gpu=unknown")
        found.append("; ".join(parts))
    return found


def _gpu(record: Record) -> tuple[str, int | None] | None:
    """Name and GiB of memory; what a record says of its environment may have any shape."""
    device = record.environment.get("device") if isinstance(record.environment, Mapping) else None
    if record.trial.device != "cuda" or not isinstance(device, Mapping) or not device.get("name"):
        return None
    size = device.get("memory_bytes")
    return printable(str(device["name"])), round(size / GIB) if isinstance(size, (int, float)) else None


def _only(kinds: set[tuple[str, int | None]]) -> tuple[str, int | None] | None:
    return next(iter(kinds)) if len(kinds) == 1 else None


def _text(gpu: tuple[str, int | None], sure: bool) -> str:
    """The name, with its memory where the name does not say all."""
    name, size = gpu
    return name if sure or size is None else f"{name} {size} GiB"
