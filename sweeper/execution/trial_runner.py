"""Runs one trial: starts its workers, ends those that exceed a limit, and makes a record of the
outcome.

Workers are started as `python -m sweeper.worker trial.json ...` in a process group of their own, so
that nothing that they started outlives them.
"""

import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags, is_resolved
from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.protocol import NOT_UNDERSTOOD, Job, Outcome, ProtocolError
from sweeper.core.record import Inspection, Record
from sweeper.core.serialization import to_json
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial

from . import processes
from .attempts import read_attempts
from .device_lease import Tenant
from .memory_budget import WHOLE_DEVICE
from .placement import DeviceSlot
from .scheduler import Finished, OnPhase
from .worker_channel import WorkerChannel, send_grant

INSPECTED = ("ok", "accuracy_mismatch", "not_compiled", "compile_error")  # the compiler was reached
GRACE_S = 1.0  # for a busy worker to write its stack to the log before it is killed


def run_trial(
    trial: Trial, settings: Settings, slot: DeviceSlot, on_phase: OnPhase, stop: threading.Event
) -> Finished:
    """Run a trial; with `measure.back_off`, halve the batch and run it again until it fits in
    memory.

    When `stop` is set the running worker is ended, and the record has the status `interrupted`. A
    record of the trial from an earlier run of the sweep becomes an attempt of the new record.
    """
    with processes.expose_package(trial.python) as variables:
        run = _TrialRun(trial, settings, slot, on_phase, stop, variables, trial.batch_size)
        attempts = read_attempts(run.paths.record)
        record = _attempt_within_memory(run)
        while record.status == "oom" and settings.measure.back_off and record.batch_size > 1:
            run = replace(run, batch_size=record.batch_size // 2)
            record = _attempt_within_memory(run)
        slot.peak_memory.learn(record)
        result = derive(record)
        working_s = time.monotonic() - run.begin_s - sum(run.idle_s)
        record = replace(record, wall_s=working_s, attempts=attempts)
        record = replace(record, flags=find_flags(record, result, settings.measure))
        if settings.inspect and record.status in INSPECTED and trial.mode != "eager":
            record = replace(record, inspection=_inspect(run, record))
    return Finished(record, result, "; ".join(run.lacking) or None)


@dataclass(frozen=True)
class _TrialRun:
    """What running a trial needs, the environment variables of its workers, and the seconds that it
    was idle.
    """

    trial: Trial
    settings: Settings
    slot: DeviceSlot
    on_phase: OnPhase
    stop: threading.Event
    variables: Mapping[str, str]
    batch_size: int  # the trial's own, or a smaller one
    begin_s: float = field(default_factory=time.monotonic)
    # for memory; per worker: for the device, or stopped
    idle_s: list[float] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)  # why a worker could not be started

    @property
    def paths(self) -> TrialPaths:
        return SweepPaths.of(self.settings.sweep).trial(self.trial.label, self.trial.id)


def _attempt_within_memory(run: _TrialRun) -> Record:
    """Attempt the trial when its memory is free; if memory ran short on a shared device, repeat it
    alone there.
    """
    needed_bytes = run.slot.peak_memory.look_up(run.trial, run.batch_size)
    while True:
        waiting_since_s = time.monotonic()
        with run.slot.memory.reserve(needed_bytes, run.stop) as reservation:
            run.idle_s.append(time.monotonic() - waiting_since_s)
            record = _attempt(run)
        failed = any(process.failed_allocations for process in record.processes)
        short = failed or record.status == "oom"
        if not (short and reservation.shared) or run.stop.is_set():
            return record
        needed_bytes = WHOLE_DEVICE


def _attempt(run: _TrialRun) -> Record:
    """Run the worker processes of a trial, one after the other, until there are enough or one is
    not ok.
    """
    if run.stop.is_set():  # keep the files of an earlier run
        return _make_record(run, [_interrupted()])
    paths = run.paths
    paths.clear_caches()
    paths.clear_logs()
    job = Job(run.trial.replace_batch_size(run.batch_size), run.settings.measure)
    write_text(paths.trial, job.dumps())
    outcomes: list[Outcome] = []
    try:
        while _needs_another(run, outcomes):
            outcomes.append(_run_timed_process(run, outcomes))
    finally:
        with suppress(OSError):  # it must not cost what was measured
            paths.clear_caches()
    return _make_record(run, outcomes)


def _needs_another(run: _TrialRun, outcomes: Sequence[Outcome]) -> bool:
    """Whether a further process is wanted; with a target, the interval so far decides."""
    measure = run.settings.measure
    if len(outcomes) >= measure.process_limit or (outcomes and outcomes[-1].status != "ok"):
        return False
    if measure.target is None or len(outcomes) < measure.process_minimum:
        return True
    return not is_resolved(derive(_make_record(run, outcomes)), measure.target)


def _run_timed_process(run: _TrialRun, earlier: Sequence[Outcome]) -> Outcome:
    """Run the next process. It needs no check where an earlier process of its draw verified the
    same code.
    """
    if run.stop.is_set():  # between two processes; `_run_worker` handles a stop within one
        return _interrupted()
    index, paths, measure = len(earlier), run.paths, run.settings.measure
    draw, index_in_draw = (0, index) if measure.target else divmod(index, measure.processes)
    done = [outcome.process for outcome in earlier if outcome.process]
    passed = (item for item in done if item.draw == draw and item.accuracy and item.accuracy.passed)
    verified = next(passed, None)
    arguments = ["--index", str(index), "--draw", str(draw)]
    if index_in_draw == 0:
        arguments.append("--cold")
    if verified and verified.artifact:
        arguments += ["--checked", verified.artifact]
    if done and done[0].steps_per_block:
        arguments += ["--steps-per-block", str(done[0].steps_per_block)]
    outcome = _run_worker(run, arguments, paths.cache(draw), paths.log(index), index, draw)
    process = outcome.process
    if not process or not process.rounds or process.accuracy or not verified:
        return outcome
    if not verified.accuracy or process.artifact != verified.artifact:
        return outcome
    accuracy = replace(verified.accuracy, of_process=verified.index)
    return replace(outcome, process=replace(process, accuracy=accuracy))


def _inspect(run: _TrialRun, record: Record) -> Inspection:
    """Run one more process, with a cache of its own, that times nothing and writes what the
    compiler does.
    """
    paths = run.paths
    needed_bytes = run.slot.peak_memory.look_up(run.trial, record.batch_size)
    arguments = ["--inspect", str(paths.inspection)]
    timed = next(filter(None, (process.code_fingerprint for process in record.processes)), None)
    if timed:
        arguments += ["--timed", timed]
    announced = replace(
        run, on_phase=lambda phase, index: run.on_phase(f"inspection, {phase}", index)
    )
    cache, log = paths.cache("inspect"), paths.log("inspect")
    index = run.settings.measure.process_limit
    try:
        with run.slot.memory.reserve(needed_bytes, run.stop):
            outcome = _run_worker(announced, arguments, cache, log, index)
    finally:
        with suppress(OSError):
            paths.clear_caches()
    folder = paths.inspection.name if (paths.inspection / "summary.md").exists() else None
    seen = outcome.process.code_fingerprint if outcome.process else None
    if outcome.status == "ok":
        return Inspection(folder, None, seen)
    missing = f"{outcome.status} while {outcome.phase}: {outcome.message}"
    return Inspection(folder, missing, seen)


def _interrupted(phase: str = "starting") -> Outcome:
    return Outcome("interrupted", phase, "interrupted by the user")


def _run_worker(
    run: _TrialRun,
    arguments: Sequence[str],
    cache: Path,
    log: Path,
    index: int,
    draw: int | None = None,
) -> Outcome:
    """Run one worker within its limits; where it sends no outcome, make one from the way it ended.

    `draw` is None for an inspection, whose answer is about no timed process.
    """
    lease = run.slot.lease
    with ExitStack() as running:
        try:
            process, pipe, tenant = running.enter_context(_start_worker(run, arguments, cache, log))
        except OSError as error:  # what earlier processes have measured is kept
            reason = processes.describe_failed_start(error)
            run.lacking.append(reason)
            return Outcome("crashed", "starting", reason)
        channel = WorkerChannel(
            pipe, run.settings.measure, lease, tenant, lambda phase: run.on_phase(phase, index)
        )
        try:
            exceeded = channel.read(process, run.stop)
            if channel.outcome is not None:
                _require_own_process(channel.outcome, index, draw)
                return channel.outcome
        except ProtocolError as error:
            return Outcome("crashed", channel.phase, str(error))
        finally:
            run.idle_s.append(lease.idle_s(tenant))
        if (run.stop.is_set() or exceeded is not None) and process.poll() is None:
            # while another worker is alone on the device, this one is stopped
            process.send_signal(signal.SIGCONT)
            # the worker's fault handler writes every thread's stack to the log
            process.send_signal(signal.SIGUSR1)
            time.sleep(GRACE_S)
        if run.stop.is_set():
            return _interrupted(channel.phase)
        if exceeded is not None:
            return Outcome("timeout", channel.phase, f"still {channel.phase} after {exceeded}")
        code = process.wait()  # it has ended
        without_result = " without a result" if code >= 0 else ""
        return Outcome(
            "crashed", channel.phase, f"the worker {processes.describe_exit(code)}{without_result}"
        )


def _require_own_process(outcome: Outcome, index: int, draw: int | None) -> None:
    """Raise ProtocolError where the outcome of a timed worker is about another process."""
    process = outcome.process
    if draw is not None and process and (process.index, process.draw) != (index, draw):
        raise ProtocolError(
            f"{NOT_UNDERSTOOD}: it is about process {process.index} of draw {process.draw}"
        )


@contextmanager
def _start_worker(
    run: _TrialRun, arguments: Sequence[str], cache: Path, log: Path
) -> Iterator[tuple[processes.ProcessGroup, int, Tenant]]:
    """Start a worker in a process group of its own, with the pipe that it answers on; the group is
    killed afterwards.

    The worker holds the other end of `stdin`: when this process dies, the pipe closes and the
    worker exits. Its lease ends once the worker has exited and its device memory is free. Raises
    OSError where it cannot be started.
    """
    receive, send = os.pipe()
    command = processes.make_command(run.trial.python, "sweeper.worker")
    command += [str(run.paths.trial), *arguments, "--answer-fd", str(send)]
    if run.slot.cores:
        command += ["--cores", ",".join(map(str, run.slot.cores))]
    environment = {
        **run.slot.device.environment(),
        **run.variables,
        **processes.make_cache_variables(cache),
    }
    try:
        process = processes.start_group(
            command, environment, log, stdin=subprocess.PIPE, pass_fds=[send]
        )
    except OSError:
        os.close(receive)
        raise
    finally:
        os.close(send)
    stdin = process.stdin
    assert stdin is not None
    os.set_blocking(stdin.fileno(), False)
    send_to_worker = functools.partial(send_grant, stdin.fileno())
    with stdin, run.slot.lease.register(process.pid, send_to_worker) as tenant:
        try:
            yield process, receive, tenant
        finally:
            os.close(receive)
            processes.kill_group(process)


def _make_record(run: _TrialRun, outcomes: Sequence[Outcome]) -> Record:
    """Put the outcomes of a trial's processes together; the last one decides the status."""
    trial, last = run.trial, outcomes[-1]
    record = Record(
        trial.id,
        run.settings.sweep,
        trial.label,
        last.status,
        trial=trial,
        environment=next(filter(None, (outcome.environment for outcome in outcomes)), {}),
        processes=tuple(outcome.process for outcome in outcomes if outcome.process),
        diagnostics=next(filter(None, (outcome.diagnostics for outcome in outcomes)), None),
        smaller_batch_size=run.batch_size if run.batch_size < trial.batch_size else None,
        measure=to_json(run.settings.measure),
    )
    if last.status == "ok":
        return record
    return replace(
        record, phase=last.phase, message=last.message, log=run.paths.log(len(outcomes) - 1).name
    )
