"""Engines: what runs the trials of a plan, here or as jobs of a cluster.

Place in the flow: `driver` gives an engine what is left to run, already checked, and gets a record for each trial. A
job is this program again with the overrides of one trial; its record comes back through the folder that both see.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.errors import ConfigError
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.record import Record
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial
from sweeper.execution.execute import Records, Watcher, execute

Run = Callable[[Sequence[Trial], Settings, Sequence[Watcher]], Records]
Launch = Callable[[Sequence[Sequence[str]]], object]  # runs a job for each list of overrides, and waits for all


@dataclass(frozen=True)
class Launcher:
    """`name` is None where this process runs the trials itself."""

    name: str | None
    run: Run


HERE = Launcher(None, execute)
CLOCKS_APART_S = 5.0  # of the machine that writes a record and this one


def jobs(name: str, launch: Launch, overrides: Mapping[str, Sequence[str]]) -> Launcher:
    """Each trial as a job; `overrides` are those of the trials by their ids.

    `launch` raises ConfigError when it can start none, anything else when some job is lost.
    """

    def run(trials: Sequence[Trial], settings: Settings, watchers: Sequence[Watcher]) -> Records:
        begin = time.time()
        try:
            launch([overrides[trial.id] for trial in trials])
        except ConfigError:  # no job has begun
            raise
        except Exception as error:  # noqa: BLE001  # an engine raises anything when a job is lost; its trial says so
            print(f"note: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        for trial in trials:
            record = _record_of(trial, settings, begin) or _lost(trial, settings, name)
            for watcher in watchers:
                watcher.trial_started(trial)
                watcher.trial_finished(record)
            yield record

    return Launcher(name, run)


def _record_of(trial: Trial, settings: Settings, begin: float) -> Record | None:
    """What a job has left since `begin`, seconds since the epoch."""
    path = SweepPaths.of(settings.sweep).trial(trial.label, trial.id).record
    if not path.exists() or path.stat().st_mtime < begin - CLOCKS_APART_S:
        return None
    return Record.loads(path.read_text(encoding="utf-8"))


def _lost(trial: Trial, settings: Settings, name: str) -> Record:
    """The record of a trial whose job ended without one; it takes the place of none that is there."""
    message = f"the job of {name} ended without a record; its own log says why"
    record = Record(trial.id, settings.sweep, trial.label, "crashed", trial, phase="starting", message=message)
    path = SweepPaths.of(settings.sweep).trial(trial.label, trial.id).record
    if not path.exists():
        write_text(path, record.dumps())
    return record
