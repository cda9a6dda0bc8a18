"""Runs one trial: starts its workers, ends those that exceed a limit, and makes a record of the
outcome.

Workers are started as `python -m sweeper.worker trial.json ...` in a process group of their own, so
that nothing that they started outlives them.
"""

import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import is_resolved
from sweeper.analysis.gains import (
    are_alike,
    can_be_compared,
    can_be_told,
    can_become_sure,
    choose_clock,
    find_gain_so_far,
    lie_apart,
)
from sweeper.core import ablation
from sweeper.core.files import make_way, write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.protocol import (
    NOT_UNDERSTOOD,
    Job,
    Known,
    Outcome,
    Phase,
    ProcessSlot,
    ProtocolError,
)
from sweeper.core.record import Inspection, Process, Record, RecordError, describe_phase, say_while
from sweeper.core.settings import Measure
from sweeper.core.system.orphans import WholeGroup
from sweeper.core.system.process_group import describe_exit

from . import processes
from .attempts import read_attempts
from .claims import find_impossible
from .draft import Draft
from .memory_budget import WHOLE_DEVICE, Need, Reservation
from .placement import DeviceSlot
from .scheduler import OnPhase, PhaseBegan, Steps
from .worker_channel import WorkerChannel, start_worker

MAX_FEATURE_PROCESSES = 4  # three settled every feature on H200s that could be settled
MAX_DEFAULT_PROCESSES = 5  # for the sake of features; wall time has an interval then
# A feature may compile so many times as long as the default, or so many seconds if that is more. On
# H200s coordinate descent of convnext_tiny alone took longer.
MAX_COMPILE_RATIO, MIN_COMPILE_LIMIT_S = 6, 120


@dataclass(frozen=True)
class WorkerCall:
    """What tells one worker of a trial from the others."""

    slot: ProcessSlot
    cache: Path
    log: Path
    inspection: Path | None = None  # where it writes what the compiler does, and times nothing


@dataclass
class TrialRun(Draft):
    """A trial while it runs: what its workers need, and what they have said so far."""

    slot: DeviceSlot
    on_phase: OnPhase
    stop: threading.Event  # ends the running worker
    compared_features: Collection[str] = ()  # whose trials are compared with this one
    default_draft: Draft | None = None  # of a feature's trial: what it is compared with
    variables: Mapping[str, str] = field(default_factory=dict)  # in the environment of its workers
    num_processes: int = 0  # that have ended
    idle_s: float = 0.0  # for memory; per worker: for the device, or stopped
    lacking: str | None = None  # why a worker could not be started
    # the worker of the next process, where it was started ahead, and what ends it
    ahead: tuple[WorkerCall, WholeGroup, WorkerChannel] | None = None
    ahead_end: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def keep_caches(self) -> Iterator[None]:
        """Keep the compile caches as long as the body runs."""
        try:
            yield
        finally:
            with suppress(OSError):  # it must not cost what was measured
                self.paths.clear_caches()

    @contextmanager
    def reserve(self, need: Need | None) -> Iterator[Reservation]:
        """Reserve memory of the device as long as the body runs."""
        waiting_since_s = time.monotonic()
        with ExitStack() as opened:
            opened.callback(self.slot.lease.settle)  # after it was given back
            reservation = opened.enter_context(self.slot.memory.reserve(need, self.stop))
            self.idle_s += time.monotonic() - waiting_since_s
            yield reservation

    def begin_attempt(self, smaller_batch_size: int | None) -> None:
        """Forget an earlier attempt."""
        self.begin(smaller_batch_size=smaller_batch_size, attempts=self.record.attempts)
        self.num_processes = 0
        if not self.stop.is_set():  # else the files of an earlier run stay
            self.paths.clear_caches()
            self.paths.clear_logs()

    def read_default(self) -> None:
        """Read the record that the trial of a feature is compared with, if this process does not
        make it.
        """
        default_id = self.trial.labels.default_id
        if default_id and not self.default_draft:
            paths = SweepPaths.of(self.settings.sweep).trial(self.trial.label, default_id)
            with suppress(RecordError):
                record = Record.read(paths.record)
                self.default_draft = Draft(record.trial, self.settings)
                self.default_draft.record = record

    @property
    def default(self) -> Record | None:
        """What the trial of a feature is compared with, as far as it is known, if that is ok."""
        record = self.default_draft.record if self.default_draft else None
        return record if record and record.status == "ok" and record.processes else None

    @property
    def timed_code(self) -> str | None:
        """The fingerprint of the code that the default has, for the first process of a feature that
        is all in its code.
        """
        if self.num_processes or not (default := self.default) or not self._is_in_code:
            return None
        return derive(default).code

    @property
    def _is_in_code(self) -> bool:
        return ablation.FEATURES[str(self.trial.labels.feature)].in_code

    @property
    def limited_measure(self) -> Measure:
        """`measure`; of a feature with a limit on compiling, unless the user has set one."""
        measure, default = self.settings.measure, self.default
        if default is None or "compiling" in measure.phase_timeouts_s:
            return measure
        took_s = default.processes[0].phases_s.get("compiling", 0.0)
        limit_s = round(max(MAX_COMPILE_RATIO * took_s, MIN_COMPILE_LIMIT_S))
        return replace(measure, phase_timeouts_s={**measure.phase_timeouts_s, "compiling": limit_s})

    def write_job(self) -> None:
        """Write the job of a worker; an earlier one may have put anything in its place."""
        job = Job(self.trial.replace_batch_size(self.record.batch_size), self.settings.measure)
        make_way(self.paths.trial)
        write_text(self.paths.trial, job.dumps())

    def needs_process(self) -> bool:
        """Whether a further process is wanted: from a minimum on the answer so far decides, or with
        a target the interval. A feature needs no more once it is told apart from the default, and
        the default no more once features can be.
        """
        measure, record = self.settings.measure, self.record
        if self.num_processes >= measure.process_limit or record.status != "ok":
            return False
        if self.num_processes and (record.message or self._is_settled()):
            return False
        if self.num_processes < measure.process_minimum:
            return True
        if measure.target is not None:
            return not is_resolved(self.result, measure.target)
        if self.default:
            return True
        if self.num_processes < MAX_DEFAULT_PROCESSES and self._is_too_uncertain():
            return True
        return can_become_sure(record, self.result, measure)

    def _is_too_uncertain(self) -> bool:
        """Whether it is known too little for the features that are compared with it."""
        if not self.compared_features:
            return False
        found = find_gain_so_far(self.record, self.result, self.settings.measure)
        kinds = {ablation.FEATURES[name].in_code for name in self.compared_features}
        return found is not None and not all(can_be_compared(in_code, found) for in_code in kinds)

    def _is_settled(self) -> bool:
        """Whether the trial of a feature is as fast as the default or, after the minimum of
        processes, known not to be; or has had enough, or more of its own would not tell.
        """
        default, measure = self.default, self.settings.measure
        if default is None or not measure.goes_on_until_sure:
            return False
        if self.default_draft and not self.default_draft.has_ended:
            return False  # this trial waits until then, and asks again
        one = find_gain_so_far(default, derive(default), measure)
        other = find_gain_so_far(self.record, self.result, measure)
        if one is None or other is None:
            return False
        one, other = choose_clock(self._is_in_code, one, other)
        if are_alike(one, other):
            return True
        if self.num_processes < measure.process_minimum:
            return False
        if self.num_processes >= MAX_FEATURE_PROCESSES:
            return True
        return lie_apart(one, other) or not can_be_told(one, other)

    def wait_for_turn(self) -> Steps[bool]:
        """Have others take their turn; whether this trial gets another process."""
        waiting_since_s = time.monotonic()
        self.on_phase(PhaseBegan(self.trial, "waiting", self.num_processes))
        goes_on = yield find_gain_so_far(self.record, self.result, self.settings.measure)
        self.idle_s += time.monotonic() - waiting_since_s
        return goes_on

    def describe_process(self, index: int) -> WorkerCall:
        measure = self.settings.measure
        draw, index_in_draw = 0, index
        if measure.draws > 1:
            draw, index_in_draw = divmod(index, measure.per_draw)
        slot = ProcessSlot(index, draw, cold=index_in_draw == 0, cores=self.slot.cores)
        return WorkerCall(slot, self.paths.cache(draw), self.paths.log(index))

    def find_known(self, draw: int) -> Known:
        """What the next process, of this draw, need not find out. It needs no check where an
        earlier process of its draw judged the same code, and none after the rounds where another
        one had loaded it from the cache.
        """
        done, judged = self.record.processes, self._find_judged(draw)
        checked = judged.artifact if judged else None
        alike = [one for one in done if one.draw == draw and one.artifact == checked]
        return Known(
            checked=checked,
            load_checked=checked is not None and len(alike) > 1,
            steps_per_block=done[0].steps_per_block if done else None,
            timed=self.timed_code,
        )

    def start_ahead(self) -> None:
        """Start the worker of the next process, which imports what it needs and then waits, where
        that disturbs nobody and the process is sure or likely to be wanted.
        """
        if self.settings.scheduler.prepare == 1:
            return
        measure, following = self.settings.measure, self.num_processes + 1
        is_likely = following != measure.process_minimum and following < measure.process_limit
        on_gpu = self.slot.device.gpu is not None  # on a CPU it would take the cores
        feature = self.trial.labels.feature
        if self.ahead or feature or self.trial.has_loop or not (is_likely and on_gpu):
            return
        call = self.describe_process(following)
        with suppress(OSError):  # it is started when its turn comes
            self.ahead = call, *self.ahead_end.enter_context(_start(self, call))

    def end_ahead(self) -> None:
        self.ahead = None
        self.ahead_end.close()

    def take(self, outcome: Outcome) -> None:
        """Add the outcome of a process; the last one decides the status."""
        record, log, message = self.record, None, outcome.message
        if outcome.status == "ok" and outcome.process and not outcome.process.rounds:
            message = "no effect: its code is that of the default, so it was not timed"
        if outcome.status != "ok":
            log = self.paths.log(self.num_processes).name
        if process := outcome.process:
            # one that was not checked gets the verdict on the same code
            if process.rounds and not process.accuracy:
                judged = self._find_judged(process.draw)
                if judged and judged.accuracy and judged.artifact == process.artifact:
                    accuracy = replace(judged.accuracy, of_process=judged.index)
                    process = replace(process, accuracy=accuracy)
            self.add(processes=(*record.processes, process))
        self.add(
            status=outcome.status,
            phase=outcome.phase,
            message=message,
            log=log,
            environment=record.environment or outcome.environment,
            diagnostics=record.diagnostics or outcome.diagnostics,
        )
        self.result = derive(self.record)
        self.num_processes += 1

    def _find_judged(self, draw: int) -> Process | None:
        """Find the first process of a draw whose code was checked, and not found wrong."""
        for process in self.record.processes:
            if process.draw == draw and process.accuracy and process.accuracy.passed is not False:
                return process
        return None


def run_trial(run: TrialRun) -> Steps[None]:
    """Run a trial; with `measure.back_off`, halve the batch and run it again until it fits in
    memory. If memory ran short on a shared device, the trial is repeated alone there. Before each
    further process it yields, and is sent whether it gets it.

    When `run.stop` is set the running worker is ended, and the record has the status `interrupted`.
    A record of the trial from an earlier run of the sweep becomes an attempt of the new record.
    """
    begin_s = time.monotonic()
    trial, settings = run.trial, run.settings
    run.add(attempts=read_attempts(run.paths.record))
    run.read_default()
    smaller, is_alone = None, False
    with processes.expose_package(trial.python) as run.variables, run.keep_caches():
        while True:
            run.begin_attempt(smaller)
            was_shared = yield from _run_processes(run, is_alone)
            record = run.record
            failed = any(process.failed_allocations for process in record.processes)
            is_short = failed or record.status == "oom"
            if is_short and was_shared and not run.stop.is_set():
                is_alone = True
            elif record.status == "oom" and settings.measure.back_off and record.batch_size > 1:
                smaller, is_alone = record.batch_size // 2, False
            else:
                break
        run.finish(wall_s=time.monotonic() - begin_s - run.idle_s)
        reached = record.status in ("ok", "accuracy_mismatch", "not_compiled", "compile_error")
        if settings.inspect and reached and trial.mode != "eager":
            run.add(inspection=_inspect(run))


def _run_processes(run: TrialRun, is_alone: bool) -> Steps[bool]:
    """Run the processes of an attempt, which may need the whole device; whether another trial had
    memory of it meanwhile.
    """
    was_shared, known_needs = False, run.slot.known_needs
    try:
        while run.needs_process():
            if run.num_processes:
                goes_on = yield from run.wait_for_turn()
                if not goes_on or not run.needs_process():
                    break
            call = run.describe_process(run.num_processes)
            need = known_needs.look_up(run.trial, run.record.batch_size, call.slot.cold)
            with run.reserve(WHOLE_DEVICE if is_alone else need) as reservation:
                known = run.find_known(call.slot.draw)
                run.take(run_worker(run, call, known, reservation))
                known_needs.learn(run.record)
            was_shared |= reservation.had_company
    finally:
        run.end_ahead()
    return was_shared


def _inspect(run: TrialRun) -> Inspection:
    """Run one more process, with a cache of its own, that times nothing and writes what the
    compiler does.
    """
    paths, record = run.paths, run.record
    timed = (process.code_fingerprint for process in record.processes)
    known = Known(timed=next(filter(None, timed), None))
    slot = ProcessSlot(run.settings.measure.process_limit, cores=run.slot.cores)
    call = WorkerCall(slot, paths.cache("inspect"), paths.log("inspect"), paths.inspection)
    need = run.slot.known_needs.look_up(run.trial, record.batch_size, slot.cold)
    with run.reserve(need) as reservation:
        outcome = run_worker(run, call, known, reservation)
    folder = missing = seen = None
    if (paths.inspection / "summary.md").exists():
        folder = paths.inspection.name
    if outcome.status != "ok":
        missing = f"{outcome.status}{say_while(outcome.phase)}: {outcome.message}"
    if outcome.process:
        seen = outcome.process.code_fingerprint
    return Inspection(folder, missing, seen)


def _interrupted(phase: str = "starting") -> Outcome:
    return Outcome("interrupted", phase, "the sweep was interrupted")


def _start(
    run: TrialRun, call: WorkerCall
) -> AbstractContextManager[tuple[WholeGroup, WorkerChannel]]:
    """Run a worker while the body runs. Raises OSError where it cannot be started."""
    run.write_job()
    slot, measure = run.slot, run.settings.measure if call.inspection else run.limited_measure
    command = processes.make_command(run.trial.python, "sweeper.worker")
    command += [str(run.paths.trial), "--slot", call.slot.dumps()]
    if call.inspection:
        command += ["--inspect", str(call.inspection)]
    caches = processes.make_cache_variables(call.cache)
    environment = {**slot.device.environment(), **run.variables, **caches}

    def announce(phase: Phase) -> None:
        name = f"inspection, {phase.name}" if call.inspection else phase.name
        run.on_phase(PhaseBegan(run.trial, name, call.slot.index, phase.note))
        if phase.name == "compiling" and not call.inspection:
            run.start_ahead()

    return start_worker(
        command, environment, call.log, measure, slot.lease, announce, call.slot.index
    )


def run_worker(run: TrialRun, call: WorkerCall, known: Known, reservation: Reservation) -> Outcome:
    """Run one worker within its limits; it may have been started ahead."""
    if run.stop.is_set():
        return _interrupted()
    measure = run.settings.measure
    with ExitStack() as opened:
        try:
            if run.ahead and run.ahead[0] == call:
                _, process, channel = run.ahead
                opened.enter_context(run.ahead_end.pop_all())
                run.ahead = None
                channel.begin_limits()
            else:
                process, channel = opened.enter_context(_start(run, call))
        except OSError as error:  # what earlier processes have measured is kept
            run.lacking = processes.describe_failed_start(error)
            return Outcome("crashed", "starting", run.lacking)
        channel.tenant.known, channel.tenant.reservation = known, reservation
        outcome = _listen(run, call, process, channel)
        life_s = time.monotonic() - channel.started_s
    if call.inspection:  # its answer is about no timed process
        return outcome
    if lie := find_impossible(outcome, measure, life_s, known.timed):
        return Outcome("crashed", outcome.phase, f"the worker's answer cannot be true: {lie}")
    return outcome


def _listen(
    run: TrialRun, call: WorkerCall, process: WholeGroup, channel: WorkerChannel
) -> Outcome:
    """Read what a worker says until its outcome; where it sends none, make one from the way it
    ended.
    """
    try:
        exceeded = channel.read(process, run.stop)
    except ProtocolError as error:
        return Outcome("crashed", channel.phase, str(error))
    finally:
        run.idle_s += channel.idle_s
    if (outcome := channel.outcome) is not None:
        done, own = outcome.process, call.slot
        if call.inspection or not done or (done.index, done.draw) == (own.index, own.draw):
            return outcome
        about = f"it is about process {done.index} of draw {done.draw}"
        return Outcome("crashed", channel.phase, f"{NOT_UNDERSTOOD}: {about}")
    if (run.stop.is_set() or exceeded is not None) and process.poll() is None:
        # while another worker has the device for itself, this one may be stopped
        process.send_signal(signal.SIGCONT)
        # the worker's fault handler writes every thread's stack to the log, a busy one a bit later
        process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
    if run.stop.is_set():
        return _interrupted(channel.phase)
    if exceeded is not None:
        message = f"still {describe_phase(channel.phase)} after {exceeded}"
        return Outcome("timeout", channel.phase, "; ".join(filter(None, (message, channel.note))))
    code = process.wait()  # it has ended
    without_result = " without a result" if code >= 0 else ""
    return Outcome("crashed", channel.phase, f"the worker {describe_exit(code)}{without_result}")
