"""Launchers: what runs the trials of a plan, this process or the jobs of a cluster.

A job is this program again with the overrides of one trial. Its record comes back through the folder that both see.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.metrics import derive
from sweeper.core.errors import ConfigError
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.record import Record
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial
from sweeper.execution.execute import execute
from sweeper.execution.placement import Placement
from sweeper.execution.scheduler import Event, Finished, Started

Run = Callable[[Sequence[Trial], Settings, Placement], Generator[Event, None, None]]
Launch = Callable[[Sequence[Sequence[str]]], object]  # runs a job for each list of overrides, and waits for all


@dataclass(frozen=True)
class Launcher:
    """How trials are run; `name` is None where this process runs them itself."""

    name: str | None
    run: Run


LOCAL = Launcher(None, execute)
CLOCKS_APART_S = 5.0  # of the machine that writes a record and this one


def make_cluster_launcher(name: str, launch: Launch, overrides: Mapping[str, Sequence[str]]) -> Launcher:
    """Make a launcher that runs each trial as a job; `overrides` are those of the trials by their ids.

    `launch` raises ConfigError when it can start no job, anything else when some job is lost.
    """

    def run(trials: Sequence[Trial], settings: Settings, _placement: Placement) -> Generator[Event, None, None]:
        begin = time.time()
        try:
            launch([overrides[trial.id] for trial in trials])
        except ConfigError:  # no job has begun
            raise
        except Exception as error:  # noqa: BLE001  # a launcher raises anything when a job is lost; its trial says so
            print(f"note: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        for trial in trials:
            yield Started(trial)
            record = _read_record(trial, settings, name, begin)
            yield Finished(record, derive(record))

    return Launcher(name, run)


def _read_record(trial: Trial, settings: Settings, name: str, begin: float) -> Record:
    """Read the record that a job has written since `begin`, seconds since the epoch, or make one that says it is lost.

    The record of a lost job replaces no earlier record on disk.
    """
    path = SweepPaths.of(settings.sweep).trial(trial.label, trial.id).record
    if path.exists() and path.stat().st_mtime >= begin - CLOCKS_APART_S:
        return Record.loads(path.read_text(encoding="utf-8"))
    message = f"the job of {name} ended without a record; its own log says why"
    record = Record(trial.id, settings.sweep, trial.label, "crashed", trial, phase="starting", message=message)
    if not path.exists():
        write_text(path, record.dumps())
    return record
