"""What happens to the trials of a sweep, for whoever shows or keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.analysis.metrics import Result
from sweeper.core.record import Record
from sweeper.core.trial import Trial


@dataclass(frozen=True)
class Started:
    """A trial has begun."""

    trial: Trial


@dataclass(frozen=True)
class PhaseBegan:
    """Process number `process` of a trial has begun a phase."""

    trial: Trial
    phase: str
    process: int


@dataclass(frozen=True)
class Finished:
    """The record of a trial is on disk; the result is derived once and goes with it."""

    record: Record
    result: Result


Event = Started | PhaseBegan | Finished
