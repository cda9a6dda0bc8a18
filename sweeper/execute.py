"""`execute(trials, settings) -> list[Record]`: the one way to run, whoever asks.

Place in the flow: a single run gives it one trial, the local launcher the whole sweep, a cluster's job one trial.
Every record is on disk before anything else happens to it. One trial runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.devices import resolve, visible_gpus
from sweeper.paths import SweepPaths, write_text
from sweeper.record import Record
from sweeper.runner import run_trial
from sweeper.settings import Settings
from sweeper.trial import Trial


class Watcher:
    """Somebody who wants to know how the sweep goes; this one does nothing, others overrule what they care about."""

    def trial_started(self, trial: Trial) -> None:
        """A trial begins."""

    def phase_started(self, trial: Trial, phase: str, process: int) -> None:
        """Process number `process` of the trial has begun a phase."""

    def trial_finished(self, record: Record) -> None:
        """The record of a trial is on disk."""


def execute(trials: Sequence[Trial], settings: Settings, watchers: Sequence[Watcher] = ()) -> list[Record]:
    """Run the trials in order and return their records; after an interruption, those there are.

    Watchers hear of each record after it is on disk.
    """
    paths = SweepPaths.of(settings.sweep)
    device = resolve(settings.device, visible_gpus())
    records: list[Record] = []
    for trial in trials:
        for watcher in watchers:
            watcher.trial_started(trial)

        def on_phase(phase: str, process: int, trial: Trial = trial) -> None:
            for watcher in watchers:
                watcher.phase_started(trial, phase, process)

        record = run_trial(trial, settings, device, on_phase)
        path = paths.trial(record.label, record.trial_id).record
        if record.status != "interrupted" or not path.exists():  # an earlier record is worth more
            write_text(path, record.dumps())
        records.append(record)
        for watcher in watchers:
            watcher.trial_finished(record)
        if record.status == "interrupted":
            break
    return records
