"""One side of a comparison: what `verdicts` needs of a record.

Place in the flow: `record.json -> Side`, one record at a time, without its rounds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.analysis.metrics import derive
from sweeper.core.paths import TrialPaths
from sweeper.core.record import Process, Record
from sweeper.core.serialization import mapping_at
from sweeper.core.text import printable
from sweeper.core.trial import Trial
from sweeper.loading.device_names import Device, read_device
from sweeper.loading.entries import BROKEN
from sweeper.loading.sources import FoundRecord, Source, explain_unreadable

UNREADABLE, UNFINISHED = "unreadable", "unfinished"  # in place of a status
TRIAL_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one process; every figure that is compared is above 0."""

    draw: int
    value: float


@dataclass(frozen=True)
class Side:
    """A trial and what was measured of it. Samples are those of an `ok` trial: a wrong program has no speed."""

    trial: Trial
    status: str  # of the record, or unreadable or unfinished where there is none to read
    batch_size: int  # the one used
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)  # by the name of the quantity
    artifacts: frozenset[str | None] = frozenset()  # of its processes; None: one whose code is not known
    host_bound_arms: str | None = None  # eager, compiled or both
    clock: str = "block"  # or step: whether each step was waited for, which takes longer
    flags: tuple[str, ...] = ()
    phase: str | None = None
    message: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # torch's global switches and the like, as they stood

    @property
    def lost(self) -> bool:
        """Whether there is no record that can be read, so that nothing is known but the trial."""
        return self.status in REASONS

    @property
    def device(self) -> Device | None:
        """What it ran on; None where the record does not say."""
        return read_device(self.environment, self.trial.device)


@dataclass(frozen=True)
class Read:
    """The sides of a sweep, one a trial id, and a line for each record that could not be read.

    `lost` are the trials of those records; one whose trial has another record, which was read, counts for nothing.
    """

    sides: tuple[Side, ...]
    problems: tuple[str, ...]
    lost: tuple[Lost, ...] = ()


def read_sides(source: Source) -> Read:
    """Every trial of a sweep; of several records of one trial the last counts, and that is said."""
    sides: dict[str, Side] = {}
    lost: dict[str, Lost] = {}
    problems = []
    for found in source.records():
        side, problem = _side_in(found)
        if side is None:
            if (trial := lost_in(found)) is not None:
                lost[trial.trial_id] = trial
        else:
            if side.trial.id in sides:
                problem = "stands for the same trial as another record, which is left out"
            sides[side.trial.id] = side
        if problem is not None:
            problems.append(printable(f"{found.where}: {problem}"))
    return Read(tuple(sides.values()), tuple(problems), tuple(one for key, one in lost.items() if key not in sides))


def _side_in(found: FoundRecord) -> tuple[Side | None, str | None]:
    """The side of a record, or why there is none."""
    if found.problem is not None:
        return None, found.problem
    try:
        return side_of(Record.loads(found.text)), None
    except BROKEN as error:
        return None, explain_unreadable(error)


def with_lost(read: Read, other: Read) -> list[Side]:
    """The sides of a sweep, and empty ones of its trials without a record, as far as these are known.

    A trial is known by its `trial.json`, or because the other sweep has one of the same id.
    """
    trials = {side.trial.id: side.trial for side in other.sides}
    told = [(one.trial or trials.get(one.trial_id), one.status) for one in read.lost]
    return [*read.sides, *(Side(trial, status, trial.batch_size) for trial, status in told if trial is not None)]


def side_of(record: Record) -> Side:
    """What is compared of a record."""
    samples: dict[str, list[Sample]] = {}
    for process in record.processes if record.status == "ok" else ():
        for name, value in _figures(process):
            samples.setdefault(name, []).append(Sample(process.draw, value))
    return Side(
        trial=record.trial,
        status=record.status,
        batch_size=record.batch_size,
        samples=samples,
        artifacts=frozenset(process.artifact for process in record.processes),
        host_bound_arms=derive(record).host_bound_arms,
        clock="step" if any(process.latencies for process in record.processes) else "block",
        flags=record.flags,
        phase=record.phase,
        message=record.message,
        environment=mapping_at(record.environment),
        settings=record.diagnostics.settings if record.diagnostics else {},
    )


def _figures(process: Process) -> Iterator[tuple[str, float]]:
    """The figures of a process that are there, and have a logarithm."""
    eager_s, compiled_s = process.step_s("eager"), process.step_s("compiled")
    memory = process.memory_bytes
    figures = {
        "eager_step_s": eager_s,
        "compiled_step_s": compiled_s,
        "speedup": eager_s / compiled_s if eager_s and compiled_s else None,
        "compile_cold_s": process.compile_s if process.cold else None,
        "compiled_peak_memory_bytes": memory.compiled if memory else None,
    }
    for name, value in figures.items():
        if value is not None and math.isfinite(value) and value > 0:
            yield name, value


REASONS: Mapping[str, str] = {UNREADABLE: "its record in {} cannot be read", UNFINISHED: "has not ended in {}"}


@dataclass(frozen=True)
class Lost:
    """A trial that left no record, or one that cannot be read."""

    trial_id: str
    status: str  # a key of `REASONS`
    trial: Trial | None = None  # None where trial.json does not say


def lost_in(found: FoundRecord) -> Lost | None:
    """The trial of a folder; None where neither the folder's name nor `trial.json` says which."""
    told = _trial_told(found.folder)
    named = TRIAL_ID.fullmatch(found.folder.name.rpartition("-")[2])
    trial_id = named[0] if named else told.id if told else None
    if trial_id is None:
        return None
    # After an out of memory trial.json holds the smaller batch, so a trial of another id.
    same = told is not None and told.id == trial_id
    return Lost(trial_id, UNREADABLE if found.ended else UNFINISHED, told if same else None)


def _trial_told(folder: Path) -> Trial | None:
    try:
        return Trial.from_json(json.loads(TrialPaths(folder).trial.read_text(encoding="utf-8"))["trial"])
    except (OSError, LookupError, TypeError, *BROKEN):
        return None
