"""`execute(trials, settings) -> Records`, given one by one: the one way to run, whoever asks.

Place in the flow: a single run gives it one trial, the local launcher the whole sweep, a cluster's job one trial.
Every record is on disk before anything else happens to it.
"""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

from sweeper.core.gpus import resolve, visible_gpus
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.record import Record
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial
from sweeper.execution.device_slots import host_cores, owned, shares_of, slots_of
from sweeper.execution.reaper import running_reaper
from sweeper.execution.scheduler import Finished, News, PhaseBegan, Slot, Started, run_all
from sweeper.execution.trial_runner import OnPhase, run_trial

Records = Generator[Record, None, None]  # to be closed by whoever has had enough: that ends what still runs

MIN_FREE_BYTES = 2**30  # a max-autotune cache of a large model is about that


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


def execute(trials: Sequence[Trial], settings: Settings, watchers: Sequence[Watcher] = ()) -> Records:
    """Run the trials, several at a time on each device, and give each record when the watchers have heard of it.

    After an interruption the last ones are those of interrupted trials. Records are not kept: ten thousand take a
    gigabyte. Raises ConfigError when another driver has every device, NoSpaceError when the disk has too little space
    for another trial.
    """
    with owned(resolve(settings.device, visible_gpus())) as devices, running_reaper() as guardian:
        shares = shares_of(devices, host_cores(), len(trials), settings.scheduler.prepare)
        for news in run_all(trials, slots_of(shares, guardian), functools.partial(_run_and_write, settings)):
            for watcher in watchers:
                tell(watcher, news)
            if isinstance(news, Finished):
                yield news.record


def tell(watcher: Watcher, news: News) -> None:
    if isinstance(news, Started):
        watcher.trial_started(news.trial)
    elif isinstance(news, PhaseBegan):
        watcher.phase_started(news.trial, news.phase, news.process)
    else:
        watcher.trial_finished(news.record)


def _run_and_write(settings: Settings, trial: Trial, slot: Slot, on_phase: OnPhase, stop: threading.Event) -> Record:
    """A trial's record, on disk when it is given."""
    paths = SweepPaths.of(settings.sweep)
    paths.folder.mkdir(parents=True, exist_ok=True)
    require_space(paths.folder, slot.prepare)
    record = run_trial(trial, settings, slot, on_phase, stop)
    path = paths.trial(record.label, record.trial_id).record
    if record.status != "interrupted" or not path.exists():  # an earlier record is worth more
        write_text(path, record.dumps())
    slot.peaks.learn(record)
    return record


def require_space(folder: Path, trials: int = 1) -> None:
    """Raises NoSpaceError when the compile caches and logs of so many trials at a time may not fit."""
    free, needed = shutil.disk_usage(folder).free, trials * MIN_FREE_BYTES
    if free < needed:
        raise NoSpaceError(
            f"{folder.absolute()} has {free / 2**20:.0f} MiB left and what runs may need {needed / 2**20:.0f}; "
            "make room, then go on with the same command"
        )
