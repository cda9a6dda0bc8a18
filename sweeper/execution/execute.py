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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain

from sweeper.analysis.derive import derive
from sweeper.core import ablation
from sweeper.core.errors import ConfigError
from sweeper.core.files import make_way, move_aside, write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, RecordError
from sweeper.core.settings import Settings
from sweeper.core.system import shortages
from sweeper.core.system.leftovers import remove_leftovers, remove_temporary
from sweeper.core.trial import Trial

from .attempts import may_replace, read_attempts
from .device_claim import claim_devices
from .draft import Draft
from .memory_budget import KnownNeeds
from .placement import DeviceSlot, Placement, join_slots, make_slots
from .processes import OWN_MARK, describe_failed_start
from .reaper import Reaper
from .scheduler import Event, Finished, OnPhase, Started, Steps, run_all
from .trial_runner import TrialRun, run_trial

# runs a job for each list of overrides, and waits for all
Launch = Callable[[Sequence[Sequence[str]]], object]
MIN_FREE_BYTES = 2**30  # about the size of a max-autotune cache of a large model
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
    other drivers have the devices, NoSpaceError when the machine lacks disk, memory or file
    handles for another trial.
    """
    paths = SweepPaths.of(settings.sweep)
    with ExitStack() as running:
        claimed = running.enter_context(claim_devices(placement.devices, settings.scheduler.locks))
        try:
            remove_temporary()
            remove_leftovers(chain(paths.folder.glob(".*"), paths.report.glob(".*")))
            needs = KnownNeeds()
            if any(share.concurrency > 1 for share in placement.shares):
                needs.read(paths.records())
        except OSError as error:
            raise NoSpaceError(shortages.describe(error)) from error
        try:
            reaper = running.enter_context(closing(Reaper(OWN_MARK)))
        except OSError as error:
            raise NoSpaceError(describe_failed_start(error)) from error
        slots = make_slots(placement, claimed, reaper, needs)
        counts = sorted({trial.num_devices for trial in trials} - {1})
        slots += [join_slots(slots, count) for count in counts]
        features = ablation.group_by_default(trials)
        run_one = functools.partial(_run_and_write, settings, features, {})
        yield from running.enter_context(closing(run_all(trials, slots, run_one, settings)))


def _run_and_write(
    settings: Settings,
    features: Mapping[str, Set[str]],
    defaults: dict[str, Draft],
    trial: Trial,
    slot: DeviceSlot,
    on_phase: OnPhase,
    stop: threading.Event,
) -> Steps[Finished]:
    """Run a trial and write its record to disk, where there is space for all trials in flight on
    the device. `features` has those that are compared with a trial, by its id, and `defaults` gets
    the draft of that trial.
    """
    compared, default = features.get(trial.id, ()), defaults.get(trial.labels.default_id or "")
    run = TrialRun(trial, settings, slot, on_phase, stop, compared, default)
    if compared:
        defaults[trial.id] = run
    with _contain(run):
        folder = run.paths.folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
        needed_bytes = slot.concurrency * MIN_FREE_BYTES
        if free_bytes < needed_bytes:
            raise NoSpaceError(
                f"{folder.absolute()} has {free_bytes / 2**20:.0f} MiB left and what runs "
                f"may need {needed_bytes / 2**20:.0f}; free some space"
            )
        remove_leftovers(run.paths.folder.glob(".*"))
        yield from run_trial(run)
    with _contain(run):
        if may_replace(run.record, run.paths.record):
            _write_record(run)
    if run.lacking:
        raise NoSpaceError(run.lacking)
    return Finished(run.record, run.result)


@contextmanager
def _contain(draft: Draft) -> Iterator[None]:
    """Have what goes wrong with a trial cost that trial alone: its record is `crashed`.

    Raises NoSpaceError where the machine lacks what the next trial needs too; an earlier record is
    still there.
    """
    try:
        yield
    except NoSpaceError:
        raise
    except Exception as error:  # the one place where anything at all becomes a record
        if isinstance(error, OSError) and error.errno in shortages.HINTS:
            why = shortages.describe(error)
            raise NoSpaceError(f"{draft.trial.label} was not measured: {why}") from error
        draft.crash(error)


def _write_record(run: TrialRun) -> None:
    """Write a record, and try again for a while where that fails: it may have taken hours to
    measure.

    Raises NoSpaceError.
    """
    text = run.record.dumps()
    for pause_s in (*WRITE_AGAIN_S, None):
        try:
            make_way(run.paths.record)
            write_text(run.paths.record, text)
            return
        except OSError as error:
            if error.errno not in shortages.HINTS:  # another trial's record may well be written
                raise
            failed = (
                f"the record of {run.trial.label} cannot be written: {shortages.describe(error)}"
            )
            if pause_s is None or run.stop.is_set():
                raise NoSpaceError(failed) from error
            print(f"note: {failed}; trying again in {pause_s:g} s", file=sys.stderr)
            run.stop.wait(pause_s)


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
    ask_for: Callable[[int], object] | None = None,
) -> Launcher:
    """Make a launcher that runs each trial as a job; `overrides` are those of the trials by their
    ids.

    `launch` raises ConfigError when it can start no job, anything else when some job is lost.
    `ask_for` sets how many devices the jobs get; those with fewer run first.
    """

    def run(
        trials: Sequence[Trial], settings: Settings, _placement: Placement
    ) -> Generator[Event, None, None]:
        if not trials:  # submitit refuses an array of no jobs
            return
        begin = time.time()
        counts = sorted({trial.num_devices for trial in trials})
        if ask_for is None and counts != [1]:
            raise ConfigError(f"{name} gives each job one GPU; several processes need more")
        for count in counts:
            if ask_for:
                ask_for(count)
            try:
                launch([overrides[trial.id] for trial in trials if trial.num_devices == count])
            except ConfigError as error:
                if count == counts[0]:  # no job has begun
                    raise
                print(f"note: {name}: {error}", file=sys.stderr)
            except Exception as error:  # noqa: BLE001  # a launcher raises anything when a job is lost; its trial says so
                print(f"note: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        for trial in trials:
            yield Started(trial)
            job = Draft(trial, settings)
            with _contain(job):
                _read_record(job, name, begin)
            yield Finished(job.record, job.result)

    return Launcher(name, run, prepare)


def _read_record(job: Draft, name: str, begin: float) -> None:
    """Read the record that a job has written since `begin`, seconds since the epoch, or make one
    that says it is lost.

    The record of a lost job replaces no earlier record on disk.
    """
    path = job.paths.record
    message = f"the job of {name} ended without a record; its own log says why"
    # the clock of the machine that writes the record may be 5 s behind
    if path.exists() and path.stat().st_mtime >= begin - 5.0:
        try:
            job.record = Record.read(path)
            job.result = derive(job.record)
            return
        except RecordError as error:
            message = (
                f"the record of the job of {name} cannot be used: {error}; it is now "
                f"{move_aside(path).name}"
            )
    attempts = read_attempts(path)
    job.finish(status="crashed", phase="starting", message=message, attempts=attempts)
    if not path.exists():
        write_text(path, job.record.dumps())
