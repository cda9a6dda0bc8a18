"""`load_from` reads sweeps and makes an entry of each record. A record that cannot be read becomes
a line for people.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sweeper.analysis.derive import derive, find_worst_accuracy
from sweeper.analysis.flags import find_disturbances
from sweeper.analysis.result import Result
from sweeper.analysis.stats import Estimate, t_quantile
from sweeper.core.record import ARMS, Accuracy, Record, RecordError
from sweeper.core.text import printable
from sweeper.core.trial import Trial, name_variants

from . import parallel
from .device_names import name_origins
from .sources import Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OverStrongest:
    """How a compiled step compares with the fastest way to run eager, which other trials of the
    sweep have shown.
    """

    eager: str  # the rung of the ladder, e.g. `eager + fused optimizer`
    speedup: Estimate


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of the rounds that count, of a trial that is ok."""

    num_rounds: tuple[int, ...] = ()  # of each process that has any
    # by arm, seconds per step in the fastest and in the slowest block
    step_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A record, its result, and what else the tables need."""

    record: Record  # without its processes; `result` and `worst` hold what the tables say of them
    result: Result
    folder: Path  # of the trial
    # of the trial, with dropout, text, device, gpu and torch where records differ in these;
    # `load_from` gives it, since it depends on all trials
    variant: str = ""
    # the record's flags, and those that take a comparison with other trials
    flags: tuple[str, ...] = ()
    # the check that came nearest to its bound, or went furthest beyond it
    worst: Accuracy | None = None
    over_strongest: OverStrongest | None = None  # where `ladder` found every way to run eager
    origin: tuple[str, ...] = ()  # the parts of the variant that records differ in: device, torch
    blocks: Blocks = Blocks()
    # the flags that say what disturbed the trial, with the share by which each may have moved it
    disturbances: Mapping[str, float] = field(default_factory=dict)

    @property
    def trial(self) -> Trial:
        return self.record.trial

    @property
    def sweep(self) -> Path:
        """The folder of its sweep."""
        return self.folder.parent

    @property
    def log(self) -> str | None:
        """The path of the worker's log."""
        if not self.record.log:
            return None
        return (self.folder / self.record.log).as_posix()

    @property
    def is_ok(self) -> bool:
        return self.record.status == "ok"


class Loaded(NamedTuple):
    """Entries in the order of sweeps and folders, and a line for each trial that could not be
    read.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


def load_from(sources: Sequence[Source], cores: int = 1) -> Loaded:
    """Read every trial of the sources, large folders in up to `cores` processes, and a repeated
    sweep only once.
    """
    entries = []
    problems = []
    shared: dict[str, Any] = {}
    for source in {source.folder.resolve(): source for source in sources}.values():
        first, *others = source.split(cores)
        if others:  # imports scipy before the processes start, which would import it each
            t_quantile(1)
        waits = [parallel.start(functools.partial(_read, part, shared), cores) for part in others]
        for found, unreadable in (_read(first, shared), *(wait() for wait in waits)):
            entries += found
            problems += unreadable
    origins = name_origins([(entry.record, entry.sweep) for entry in entries])
    variants = name_variants([entry.trial for entry in entries])
    named = []
    for entry, variant, origin in zip(entries, variants, origins, strict=True):
        whole = "; ".join(filter(None, (variant, *origin)))
        named.append(replace(entry, variant=whole, origin=origin))
    return Loaded(tuple(named), tuple(problems))


def _read(source: Source, shared: dict[str, Any]) -> tuple[list[Entry], list[str]]:
    """Read one record at a time, since all of them with their samples would need much more
    memory.
    """
    entries = []
    problems = []
    for found in source.records():
        try:
            record = found.read()
            entries.append(
                Entry(
                    _slim(record, shared),
                    derive(record),
                    found.folder,
                    flags=record.flags,
                    worst=find_worst_accuracy(record),
                    blocks=_read_blocks(record),
                    disturbances=find_disturbances(record),
                )
            )
        except RecordError as error:
            problems.append(printable(f"{found.where}: {error}"))
        except Exception as error:  # noqa: BLE001  # no single record costs the report of the others
            problems.append(printable(f"{found.where}: {type(error).__name__}: {error}"))
    return entries, problems


def _read_blocks(record: Record) -> Blocks:
    if record.status != "ok":
        return Blocks()
    num_rounds = []
    steps_s: dict[str, list[float]] = defaultdict(list)
    for process in record.processes:
        if process.steps_per_block and (eager_s := process.blocks_s("eager")):
            num_rounds.append(len(eager_s))
            for arm in ARMS:
                for block_s in process.blocks_s(arm):
                    steps_s[arm].append(block_s / process.steps_per_block)
    ends = {arm: (min(found), max(found)) for arm, found in steps_s.items()}
    return Blocks(tuple(num_rounds), ends)


def _slim(record: Record, shared: dict[str, Any]) -> Record:
    """Drop the processes of a record, and share values that are equal between records.

    Ten thousand records with their own samples and environments take half a gigabyte.
    """

    def share(value: T) -> T:
        kept: T = shared.setdefault(repr(value), value)  # repr tells apart what JSON tells apart
        return kept

    parts = ("model", "labels", "precision", "compile", "text")
    trial = replace(record.trial, **{part: share(getattr(record.trial, part)) for part in parts})
    diagnostics = record.diagnostics
    if diagnostics:
        diagnostics = replace(diagnostics, settings=share(diagnostics.settings))
    environment = share(record.environment)
    return replace(
        record, trial=trial, processes=(), diagnostics=diagnostics, environment=environment
    )
