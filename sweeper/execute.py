"""`execute(trials, settings) -> Iterator[Record]`: the one way to run, whoever asks.

Place in the flow: a single run gives it one trial, the local launcher the whole sweep, a cluster's job one trial.
Every record is on disk before anything else happens to it. One trial runs at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeper.devices import resolve, visible_gpus
from sweeper.paths import SweepPaths, write_text
from sweeper.record import Record
from sweeper.runner import run_trial
from sweeper.settings import Settings
from sweeper.trial import Trial

LEAST_FREE_BYTES = 2**30  # a max-autotune cache of a large model is about that


class NoSpaceError(Exception):
    """The disk is too full to begin another trial."""


class Watcher:
    """Somebody who wants to know how the sweep goes; this one does nothing, others overrule what they care about."""

    def trial_started(self, trial: Trial) -> None:
        """A trial begins."""

    def phase_started(self, trial: Trial, phase: str, process: int) -> None:
        """Process number `process` of the trial has begun a phase."""

    def trial_finished(self, record: Record) -> None:
        """The record of a trial is on disk."""


def execute(trials: Sequence[Trial], settings: Settings, watchers: Sequence[Watcher] = ()) -> Iterator[Record]:
    """Run the trials in order and give the record of each when it is on disk and the watchers have heard of it.

    The last one is that of an interrupted trial, after an interruption. Records are not kept: ten thousand take a
    gigabyte. Raises NoSpaceError before a trial for which the disk has too little space.
    """
    paths = SweepPaths.of(settings.sweep)
    device = resolve(settings.device, visible_gpus())
    paths.folder.mkdir(parents=True, exist_ok=True)
    for trial in trials:
        require_space(paths.folder)
        for watcher in watchers:
            watcher.trial_started(trial)

        def on_phase(phase: str, process: int, trial: Trial = trial) -> None:
            for watcher in watchers:
                watcher.phase_started(trial, phase, process)

        record = run_trial(trial, settings, device, on_phase)
        path = paths.trial(record.label, record.trial_id).record
        if record.status != "interrupted" or not path.exists():  # an earlier record is worth more
            write_text(path, record.dumps())
        for watcher in watchers:
            watcher.trial_finished(record)
        yield record
        if record.status == "interrupted":
            return


def require_space(folder: Path) -> None:
    """Raises NoSpaceError when a trial's compile caches and logs may not fit."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise NoSpaceError(
            f"{folder.absolute()} has {free / 2**20:.0f} MiB left and a trial may need {LEAST_FREE_BYTES / 2**20:.0f}; "
            "make room, then go on with the same command"
        )
