"""One side of a comparison: what `verdicts` needs of a record, without its rounds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sweeper.analysis.metrics import derive
from sweeper.compare.quantities import QUANTITIES, Quantity
from sweeper.core.paths import TrialPaths
from sweeper.core.record import Process, Record
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.core.trial import Trial
from sweeper.loading.device_names import Device, read_device
from sweeper.loading.entries import BROKEN
from sweeper.loading.sources import FoundRecord, Source, explain_unreadable

# Statuses of a trial without a record, and how they are said of BASE or HEAD.
LOST: Mapping[str, str] = {"unreadable": "its record in {} cannot be read", "unfinished": "has not ended in {}"}
TRIAL_ID = re.compile(r"[0-9a-f]{12}")


class Sample(NamedTuple):
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
        return read_device(self.environment, self.trial.device)


@dataclass(frozen=True)
class SweepSides:
    """The sides of a sweep, one per trial id, and a line for each record that could not be read."""

    sides: Mapping[str, Side]  # by trial id
    lost: Mapping[str, tuple[str, Trial | None]]  # other trials by id: a key of `LOST`, and the trial if it is known
    problems: tuple[str, ...]


def read_sides(source: Source) -> SweepSides:
    """Read every trial of a sweep; of several records of one trial the last counts, which is reported."""
    sides: dict[str, Side] = {}
    lost: dict[str, tuple[str, Trial | None]] = {}
    problems = []
    for found in source.records():
        problem = found.problem
        try:
            side = make_side(Record.loads(found.text)) if problem is None else None
        except BROKEN as error:
            side, problem = None, explain_unreadable(error)
        if side is None:
            trial_id, trial = _identify(found)
            lost[trial_id] = "unreadable" if found.ended else "unfinished", trial
        else:
            again = "stands for the same trial as another record, which is left out"
            problem = again if side.trial.id in sides else problem
            sides[side.trial.id] = side
        if problem is not None:
            problems.append(printable(f"{found.where}: {problem}"))
    return SweepSides(sides, {key: lost[key] for key in lost if key not in sides}, tuple(problems))


def _identify(found: FoundRecord) -> tuple[str, Trial | None]:
    """The id in the folder's name or of `trial.json`, empty where neither has one, and the trial if it is known."""
    trial: Trial | None = None
    with suppress(OSError, LookupError, TypeError, *BROKEN):
        trial = Trial.from_json(json.loads(TrialPaths(found.folder).trial.read_text(encoding="utf-8"))["trial"])
    named = TRIAL_ID.fullmatch(found.folder.name.rpartition("-")[2])
    trial_id = named[0] if named else trial.id if trial else ""
    # After an out of memory trial.json holds the smaller batch, so a trial with another id.
    return trial_id, trial if trial and trial.id == trial_id else None


def list_sides(read: SweepSides, other: SweepSides) -> list[Side]:
    """The sides of a sweep, and empty ones for trials without a record.

    Such a trial is known by its `trial.json`, or because the other sweep has a trial with its id.
    """
    known = {trial_id: side.trial for trial_id, side in other.sides.items()}
    lost = ((status, trial or known.get(trial_id)) for trial_id, (status, trial) in read.lost.items())
    return [*read.sides.values(), *(Side(trial, status, trial.batch_size) for status, trial in lost if trial)]


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
        environment=get_mapping(record.environment),
        settings=record.diagnostics.settings if record.diagnostics else {},
    )


def _take_samples(quantity: Quantity, processes: Sequence[Process]) -> list[Sample]:
    """The figures that exist and have a logarithm."""
    values = ((process.draw, quantity.value(process)) for process in processes)
    return [Sample(draw, value) for draw, value in values if value is not None and math.isfinite(value) and value > 0]
