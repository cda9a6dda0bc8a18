"""One side of a comparison: what `verdicts` needs of a record, without its rounds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sweeper.analysis.metrics import derive
from sweeper.compare.quantities import QUANTITIES, Quantity
from sweeper.core.paths import TrialPaths
from sweeper.core.record import Process, Record
from sweeper.core.serialization import mapping_at
from sweeper.core.text import printable
from sweeper.core.trial import Trial
from sweeper.loading.device_names import Device, device_of
from sweeper.loading.entries import BROKEN
from sweeper.loading.sources import FoundRecord, Source, why_unreadable

# Statuses of a trial without a record, and how they are said of BASE or HEAD.
LOST: Mapping[str, str] = {"unreadable": "its record in {} cannot be read", "unfinished": "has not ended in {}"}
TRIAL_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one process; every figure that is compared is above 0."""

    draw: int
    value: float


@dataclass(frozen=True)
class Side:
    """A trial and what was measured of it. Only an `ok` trial has samples: a wrong program has no speed."""

    trial: Trial
    status: str  # of the record, or one of `LOST` where no record can be read
    batch_size: int  # the one used
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)  # by the name of the quantity
    artifacts: frozenset[str | None] = frozenset()  # of its processes; None: one whose code is not known
    host_bound_arms: str | None = None  # eager, compiled or both
    clock: str = "block"  # or step: whether each step was waited for, which takes longer
    flags: tuple[str, ...] = ()
    phase: str | None = None
    message: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # torch's global switches during the trial

    @property
    def lost(self) -> bool:
        """Whether no record can be read, so that only the trial is known."""
        return self.status in LOST

    @property
    def device(self) -> Device | None:
        """The device that ran the trial; None where the record does not say."""
        return device_of(self.environment, self.trial.device)


@dataclass(frozen=True)
class LostTrial:
    """A trial without a record that can be read."""

    status: str  # a key of `LOST`
    trial: Trial | None  # None where trial.json does not say


@dataclass(frozen=True)
class SweepSides:
    """The sides of a sweep, one per trial id, and a line for each record that could not be read."""

    sides: tuple[Side, ...]
    problems: tuple[str, ...]
    lost: Mapping[str, LostTrial]  # by trial id, of trials that are not in `sides`


def read_sides(source: Source) -> SweepSides:
    """Read every trial of a sweep; of several records of one trial the last counts, which is reported."""
    sides: dict[str, Side] = {}
    lost: dict[str, LostTrial] = {}
    problems = []
    for found in source.records():
        problem = found.problem
        try:
            side = make_side(Record.loads(found.text)) if problem is None else None
        except BROKEN as error:
            side, problem = None, why_unreadable(error)
        if side is None:
            lost |= _find_lost_trial(found)
        else:
            if side.trial.id in sides:
                problem = "stands for the same trial as another record, which is left out"
            sides[side.trial.id] = side
        if problem is not None:
            problems.append(printable(f"{found.where}: {problem}"))
    return SweepSides(
        tuple(sides.values()), tuple(problems), {key: one for key, one in lost.items() if key not in sides}
    )


def make_side(record: Record) -> Side:
    """Extract what is compared of a record."""
    measured = record.processes if record.status == "ok" else ()
    return Side(
        trial=record.trial,
        status=record.status,
        batch_size=record.batch_size,
        samples={quantity.name: _take_samples(quantity, measured) for quantity in QUANTITIES},
        artifacts=frozenset(process.artifact for process in record.processes),
        host_bound_arms=derive(record).host_bound_arms,
        clock="step" if any(process.latencies for process in record.processes) else "block",
        flags=record.flags,
        phase=record.phase,
        message=record.message,
        environment=mapping_at(record.environment),
        settings=record.diagnostics.settings if record.diagnostics else {},
    )


def _take_samples(quantity: Quantity, processes: Sequence[Process]) -> list[Sample]:
    """The figures that exist and have a logarithm."""
    values = ((process.draw, quantity.value(process)) for process in processes)
    return [Sample(draw, value) for draw, value in values if value is not None and math.isfinite(value) and value > 0]


def list_sides(read: SweepSides, other: SweepSides) -> list[Side]:
    """The sides of a sweep, and empty ones for trials without a record.

    Such a trial is known by its `trial.json`, or because the other sweep has a trial with its id.
    """
    trials = {side.trial.id: side.trial for side in other.sides}
    known = [(lost.trial or trials.get(trial_id), lost.status) for trial_id, lost in read.lost.items()]
    return [*read.sides, *(Side(trial, status, trial.batch_size) for trial, status in known if trial is not None)]


def _find_lost_trial(found: FoundRecord) -> dict[str, LostTrial]:
    """The trial of a folder by its id; empty where neither the folder's name nor `trial.json` says which."""
    trial: Trial | None = None
    with suppress(OSError, LookupError, TypeError, *BROKEN):
        trial = Trial.from_json(json.loads(TrialPaths(found.folder).trial.read_text(encoding="utf-8"))["trial"])
    named = TRIAL_ID.fullmatch(found.folder.name.rpartition("-")[2])
    trial_id = named[0] if named else trial.id if trial else None
    if trial_id is None:
        return {}
    # After an out of memory trial.json holds the smaller batch, so a trial with another id.
    return {
        trial_id: LostTrial(
            "unreadable" if found.ended else "unfinished", trial if trial and trial.id == trial_id else None
        )
    }
