"""Records from the sources of sweeps; what cannot be read becomes a line for people, and the rest goes on.

Place in the flow: `record.json -> Entry`, the row that every table is made from.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sweeper.analysis.metrics import Result, derive, worst_accuracy
from sweeper.analysis.stats import Interval
from sweeper.core.record import Accuracy, Record
from sweeper.core.text import printable
from sweeper.loading import parallel
from sweeper.loading.device_names import names_of_devices, names_of_torches
from sweeper.loading.sources import Source, SweepFolder, why_unreadable
from sweeper.loading.step_series import ProcessSeries, series_of

# What `Record.loads` and `derive` raise for JSON of the right shape whose values make no sense, e.g. text for a number.
BROKEN = (ValueError, ArithmeticError, RecursionError)

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A record, its result and what the tables need beside them."""

    record: Record  # without its processes; `result` and `worst` have what the tables say of them
    result: Result
    folder: Path  # the trial's
    variant: str  # the trial's, with `device=...`, `gpu=...` or `cpu=...` where records come from several
    flags: tuple[str, ...] = ()  # the record's, and those that only a look at other trials can give
    worst: Accuracy | None = None  # the check that came nearest to its bound, or went furthest beyond it
    moderated: Interval | None = None  # of the speedup, where `across` found enough trials like it
    series: tuple[ProcessSeries, ...] = ()  # step times in order


@dataclass(frozen=True)
class Loaded:
    """Entries in the order of sweeps and folders; `problems` has a line for each trial that could not be read."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


def load(sweeps: Sequence[Path]) -> Loaded:
    """Read every trial in the folders of the sweeps."""
    return load_from([SweepFolder(folder) for folder in sweeps])


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Records and pages hold none; to look through ten thousand again and again takes a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Read(NamedTuple):
    """What is kept of a record."""

    record: Record
    result: Result
    worst: Accuracy | None
    series: tuple[ProcessSeries, ...]
    folder: Path


@no_search_for_cycles()
def load_from(sources: Sequence[Source], cores: int = 1) -> Loaded:
    """Read every trial, those of large sweeps in as many processes as `cores`; a sweep named twice is read once."""
    read: list[Read] = []
    problems: list[str] = []
    shared = _Shared()
    for source in {source.folder.resolve(): source for source in sources}.values():
        first, *others = source.parts(cores)
        waiting = [parallel.beside(functools.partial(_read, part, shared), cores) for part in others]
        for found, unreadable in (_read(first, shared), *(wait() for wait in waiting)):
            read += found
            problems += unreadable
    devices = names_of_devices([(item.record, item.folder.parent) for item in read])
    torches = names_of_torches([item.record for item in read])
    entries = tuple(
        Entry(
            item.record,
            item.result,
            item.folder,
            _variant(item.record, device, torch),
            item.record.flags,
            item.worst,
            series=item.series,
        )
        for item, device, torch in zip(read, devices, torches, strict=True)
    )
    return Loaded(entries, tuple(problems))


def _read(source: Source, shared: _Shared) -> tuple[list[Read], list[str]]:
    """One record at a time, since all of them with their samples would need much more memory."""
    read: list[Read] = []
    problems: list[str] = []
    for found in source.records():
        if found.problem is not None:
            problems.append(printable(f"{found.where}: {found.problem}"))
            continue
        try:
            record = Record.loads(found.text)
            result, worst, series = derive(record), worst_accuracy(record), series_of(record)
        except BROKEN as error:
            problems.append(printable(f"{found.where}: {why_unreadable(error)}"))
            continue
        read.append(Read(shared.slim(record), result, worst, series, found.folder))
    return read, problems


class _Shared:
    """Makes records small: ten thousand with their samples, and an environment each, take half a gigabyte."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def slim(self, record: Record) -> Record:
        """The record without its processes, and with one copy of what is equal in others."""
        trial, diagnostics = record.trial, record.diagnostics
        if diagnostics is not None:
            diagnostics = replace(diagnostics, settings=self._one(repr(diagnostics.settings), diagnostics.settings))
        return replace(
            record,
            trial=replace(
                trial,
                model=self._one(trial.model.key, trial.model),
                labels=self._one(trial.labels, trial.labels),
                precision=self._one(trial.precision, trial.precision),
                compile=self._one(repr(trial.compile), trial.compile),
            ),
            processes=(),
            diagnostics=diagnostics,
            environment=self._one(repr(record.environment), record.environment),
        )

    def _one(self, key: Hashable, value: T) -> T:
        """`key` tells apart what is not equal; so does `repr` of what was read from JSON."""
        kept: T = self._values.setdefault(key, value)
        return kept


def _variant(record: Record, device: str, torch: str) -> str:
    parts = [record.trial.variant, device, torch]
    return "; ".join(part for part in parts if part)
