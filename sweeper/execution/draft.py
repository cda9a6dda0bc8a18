"""Draft: the record of a trial while it is made."""

import traceback
from dataclasses import dataclass, field, replace
from typing import Any

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags
from sweeper.analysis.result import Result
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.record import Record
from sweeper.core.serialization import to_json
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial


@dataclass
class Draft:
    """The record of a trial as far as it is known, and its figures."""

    trial: Trial
    settings: Settings
    record: Record = field(init=False)
    result: Result = field(init=False, default=Result(0, 0))

    def __post_init__(self) -> None:
        self.begin()

    @property
    def paths(self) -> TrialPaths:
        return SweepPaths.of(self.settings.sweep).trial(self.trial.label, self.trial.id)

    @property
    def has_ended(self) -> bool:
        """Whether its record has its last fields."""
        return self.record.wall_s is not None

    def begin(self, **values: Any) -> None:
        """Begin the record anew, with these fields."""
        trial, settings = self.trial, self.settings
        self.record = Record(
            trial.id,
            settings.sweep,
            trial.label,
            "ok",
            trial=trial,
            measure=to_json(settings.measure),
            **values,
        )

    def add(self, **values: Any) -> None:
        """Set fields of the record."""
        self.record = replace(self.record, **values)

    def finish(self, **values: Any) -> None:
        """Set the last fields of the record, and derive its figures and flags."""
        self.add(**values)
        self.result = derive(self.record)
        self.add(flags=find_flags(self.record, self.result, self.settings.measure))

    def crash(self, error: Exception) -> None:
        """Have the record say that sweeper failed; what was measured before stays."""
        traceback.print_exception(error)
        self.result = Result(0, 0)
        self.add(
            status="crashed",
            phase="starting",
            message=f"sweeper failed: {type(error).__name__}: {error}",
        )
