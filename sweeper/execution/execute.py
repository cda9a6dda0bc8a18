"""Run trials: `execute` in this process, for a whole sweep and for a cluster's job; a cluster's
launcher as jobs.

Every record is on disk before anything else happens to it. A job is this program again with the
overrides of one trial. Its record comes back through the folder that both see.
"""

import functools
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags
from sweeper.core.errors import ConfigError
from sweeper.core.files import move_aside, write_text
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import to_json
from sweeper.core.settings import Settings
from sweeper.core.system import shortages
from sweeper.core.system.leftovers import remove_leftovers, remove_temporary
from sweeper.core.trial import Trial

from .attempts import read_attempts
from .device_claim import claim_devices
from .placement import DeviceSlot, Placement, make_slots
from .processes import OWN_MARK, describe_failed_start
from .reaper import Reaper
from .scheduler import Event, Finished, OnPhase, Started, run_all
from .trial_runner import run_trial

# runs a job for each list of overrides, and waits for all
Launch = Callable[[Sequence[Sequence[str]]], object]
MIN_FREE_BYTES = 2**30  # about the size of a max-autotune cache of a large model
CLOCKS_APART_S = 5.0  # of the machine that writes a record and this one
# pauses between attempts to write a record: other trials that end free space
WRITE_AGAIN_S = (1.0, 2.0, 4.0, 8.0)


class NoSpaceError(Exception):
    """The machine lacks what another trial needs: disk, memory, file handles. The text ends with
    how to go on.
    """

    def __init__(self, lacking: str) -> None:
        super().__init__(f"{lacking}, then go on with the same command")


def execute(
    trials: Sequence[Trial], settings: Settings, placement: Placement
) -> Generator[Event, None, None]:
    """Run the trials on the devices of the placement, and yield the events. Closing the generator
    ends what still runs.

    After an interruption the last records are those of interrupted trials. Raises ConfigError when
    another driver has every device, NoSpaceError when the machine lacks disk, memory or file
    handles for another trial.
    """
    paths = SweepPaths.of(settings.sweep)
    with ExitStack() as running:
        claimed = running.enter_context(claim_devices(placement.devices, settings.scheduler.locks))
        try:
            remove_temporary()
            remove_leftovers(chain(paths.folder.glob(".*"), paths.report.glob(".*")))
        except OSError as error:
            raise NoSpaceError(shortages.describe(error)) from error
        try:
            reaper = running.enter_context(closing(Reaper(OWN_MARK)))
        except OSError as error:
            raise NoSpaceError(describe_failed_start(error)) from error
        slots = make_slots(placement, claimed, reaper)
        yield from run_all(trials, slots, functools.partial(_run_and_write, settings))


def _run_and_write(
    settings: Settings, trial: Trial, slot: DeviceSlot, on_phase: OnPhase, stop: threading.Event
) -> Finished:
    """Run a trial and write its record to disk, where there is space for all trials in flight on
    the device.
    """
    paths = SweepPaths.of(settings.sweep)
    try:
        paths.folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(paths.folder).free
        needed_bytes = slot.concurrency * MIN_FREE_BYTES
        if free_bytes < needed_bytes:
            raise NoSpaceError(
                f"{paths.folder.absolute()} has {free_bytes / 2**20:.0f} MiB left and what runs "
                f"may need {needed_bytes / 2**20:.0f}; free some space"
            )
        own = paths.trial(trial.label, trial.id)
        remove_leftovers(own.folder.glob(".*"))
        finished = run_trial(trial, settings, slot, on_phase, stop)
        record = finished.record
        # an interrupted trial replaces no earlier record
        if record.status != "interrupted" or not own.record.exists():
            _write_record(own, record, stop)
    except OSError as error:  # an earlier record is still there
        why = shortages.describe(error)
        raise NoSpaceError(f"{trial.label} was not measured: {why}") from error
    if finished.lacking:
        raise NoSpaceError(finished.lacking)
    return finished


def _write_record(own: TrialPaths, record: Record, stop: threading.Event) -> None:
    """Write a record, and try again for a while where that fails: it may have taken hours to
    measure.

    Raises NoSpaceError.
    """
    text = record.dumps()
    for pause_s in (*WRITE_AGAIN_S, None):
        try:
            write_text(own.record, text)
            return
        except OSError as error:
            failed = f"the record of {record.label} cannot be written: {shortages.describe(error)}"
            if pause_s is None or stop.is_set():
                raise NoSpaceError(failed) from error
            print(f"note: {failed}; trying again in {pause_s:g} s", file=sys.stderr)
            stop.wait(pause_s)


@dataclass(frozen=True)
class Launcher:
    """How trials are run; `name` is None where this process runs them itself.

    `prepare` joins the cluster, and raises ConfigError where there is none. It is called where
    there are trials to run.
    """

    name: str | None
    run: Callable[[Sequence[Trial], Settings, Placement], Generator[Event, None, None]]
    prepare: Callable[[], object] | None = None


LOCAL = Launcher(None, execute)


def make_cluster_launcher(
    name: str,
    launch: Launch,
    overrides: Mapping[str, Sequence[str]],
    prepare: Callable[[], object] | None = None,
) -> Launcher:
    """Make a launcher that runs each trial as a job; `overrides` are those of the trials by their
    ids.

    `launch` raises ConfigError when it can start no job, anything else when some job is lost.
    """

    def run(
        trials: Sequence[Trial], settings: Settings, _placement: Placement
    ) -> Generator[Event, None, None]:
        if not trials:  # submitit refuses an array of no jobs
            return
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

    return Launcher(name, run, prepare)


def _read_record(trial: Trial, settings: Settings, name: str, begin: float) -> Record:
    """Read the record that a job has written since `begin`, seconds since the epoch, or make one
    that says it is lost.

    The record of a lost job replaces no earlier record on disk.
    """
    path = SweepPaths.of(settings.sweep).trial(trial.label, trial.id).record
    if path.exists() and path.stat().st_mtime >= begin - CLOCKS_APART_S:
        try:
            return Record.read(path)
        except RecordError as error:
            message = (
                f"the record of the job of {name} cannot be used: {error}; it is now "
                f"{move_aside(path).name}"
            )
    else:
        message = f"the job of {name} ended without a record; its own log says why"
    record = Record(
        trial.id,
        settings.sweep,
        trial.label,
        "crashed",
        trial=trial,
        phase="starting",
        message=message,
        attempts=read_attempts(path),
        measure=to_json(settings.measure),
    )
    record = replace(record, flags=find_flags(record, derive(record), settings.measure))
    if not path.exists():
        write_text(path, record.dumps())
    return record
