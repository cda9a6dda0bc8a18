"""One trial: start its worker processes, listen, end what runs too long, and make a record of whatever happened.

Place in the flow: `execute` calls `run_trial` for each trial; it always returns a record. Workers are started as
`python -m sweeper.worker trial.json ...` in a process group of their own, so that nothing they started outlives them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.analysis.flags import find_flags, is_resolved
from sweeper.core.paths import SweepPaths, TrialPaths, write_text
from sweeper.core.protocol import Job, LeaseGrant, Outcome
from sweeper.core.record import Inspection, Process, Record
from sweeper.core.settings import MIN_PROCESSES_FOR_TARGET, Settings
from sweeper.core.trial import Trial
from sweeper.execution.device_lease import DeviceLease, Member
from sweeper.execution.interpreter import command, search_path
from sweeper.execution.memory_budget import EVERYTHING
from sweeper.execution.scheduler import Slot
from sweeper.execution.worker_channel import Clock, WorkerChannel, listen

WORKER = "sweeper.worker"
INSPECTED = ("ok", "accuracy_mismatch", "not_compiled", "compile_error")  # the compiler had its turn
GRACE_S = 1.0  # for a hanging worker to write its stack to the log before it is killed
OnPhase = Callable[[str, int], None]  # phase, index of the process


@dataclass(frozen=True)
class Start:
    """How a worker is started: its command line, and what its environment says beside the driver's."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class WorkerRun:
    """How one worker process ended: with an outcome of its own, or without one and why."""

    outcome: Outcome
    log: Path


def run_trial(
    trial: Trial,
    settings: Settings,
    slot: Slot,
    on_phase: OnPhase = lambda _phase, _index: None,
    stop: threading.Event | None = None,
) -> Record:
    """Run a trial; with `measure.back_off` again with half the batch as long as it runs out of memory.

    When `stop` is set the running worker is ended, and the record has the status `interrupted`.
    """
    run = _Run(trial, settings, slot, on_phase, stop or threading.Event())
    record = _in_its_room(run)
    while record.status == "oom" and settings.measure.back_off and record.batch_size > 1:
        record = _in_its_room(replace(run, smaller_batch_size=record.batch_size // 2))
    record = replace(record, wall_s=run.taken_s())
    return replace(record, inspection=_inspect(run, record)) if _shall_be_inspected(run, record) else record


@dataclass(frozen=True)
class _Run:
    """A trial as it is run: with what, where, and who hears of it."""

    trial: Trial
    settings: Settings
    slot: Slot
    on_phase: OnPhase
    stop: threading.Event
    smaller_batch_size: int | None = None
    begin: float = field(default_factory=time.monotonic)
    idle_s: list[float] = field(default_factory=list)  # of each worker

    @property
    def batch_size(self) -> int:
        return self.smaller_batch_size or self.trial.batch_size

    @property
    def paths(self) -> TrialPaths:
        return SweepPaths.of(self.settings.sweep).trial(self.trial.label, self.trial.id)

    def taken_s(self) -> float:
        """Wall seconds since the beginning that it did not wait, for memory, for the device or stopped."""
        return time.monotonic() - self.begin - sum(self.idle_s)


def _in_its_room(run: _Run) -> Record:
    """An attempt; where memory was short beside others, it was perhaps theirs: then once more with nobody else."""
    needed_bytes = run.slot.peaks.of(run.trial, run.batch_size)
    while True:
        waiting = time.monotonic()
        with run.slot.room.stay(needed_bytes, run.stop) as stay:
            run.idle_s.append(time.monotonic() - waiting)
            record = _attempt(run)
        short = record.status == "oom" or any(process.failed_allocations for process in record.processes)
        if not (short and stay.had_company) or run.stop.is_set():
            return record
        needed_bytes = EVERYTHING


def _attempt(run: _Run) -> Record:
    """Run the worker processes of a trial, one after the other, until there are enough or one is not ok."""
    trial, settings, paths = run.trial, run.settings, run.paths
    if run.stop.is_set():  # what an earlier run has left stays
        return _record(trial, settings, [WorkerRun(_interrupted(), paths.log(0))])
    paths.clear_caches()
    paths.clear_logs()
    own = trial.replace_batch_size(run.batch_size)
    write_text(paths.trial, Job(own, settings.measure).dumps())
    runs: list[WorkerRun] = []
    try:
        with _worker(run) as start:
            while not _enough(trial, settings, runs):
                runs.append(_run_process(run, start, runs))
    finally:
        paths.clear_caches()
    return _record(trial, settings, runs, run.smaller_batch_size)


@contextmanager
def _worker(run: _Run) -> Iterator[Start]:
    """How any worker of the trial is started."""
    with search_path(run.trial.python) as variables:
        yield Start(command(run.trial.python, WORKER), {**run.slot.device.environment(), **variables})


def _shall_be_inspected(run: _Run, record: Record) -> bool:
    return run.settings.inspect and record.status in INSPECTED and run.trial.mode != "eager"


def _inspect(run: _Run, record: Record) -> Inspection:
    """One more process, with a cache of its own, that times nothing and writes what the compiler does."""
    paths = run.paths
    run.slot.peaks.learn(record)
    needed_bytes = run.slot.peaks.of(run.trial, record.batch_size)
    timed = next((process.code_fingerprint for process in record.processes if process.code_fingerprint), None)
    arguments = ["--inspect", str(paths.inspection), *(["--timed", timed] if timed else [])]
    announced = replace(run, on_phase=lambda phase, index: run.on_phase(f"inspection, {phase}", index))
    try:
        with _worker(run) as start, run.slot.room.stay(needed_bytes, run.stop):
            start = _for_this(run, start, arguments, paths.cache("inspect"))
            outcome = _run_worker(announced, start, paths.log("inspect"), run.settings.measure.process_limit)
    finally:
        paths.clear_caches()
    return Inspection(
        folder=paths.inspection.name if (paths.inspection / "summary.md").exists() else None,
        missing=None if outcome.status == "ok" else f"{outcome.status} while {outcome.phase}: {outcome.message}",
        code_fingerprint=outcome.process.code_fingerprint if outcome.process else None,
    )


def _enough(trial: Trial, settings: Settings, runs: list[WorkerRun]) -> bool:
    """Whether no further process is wanted; with a target that is seen from the interval so far."""
    if runs and runs[-1].outcome.status != "ok":
        return True
    measure = settings.measure
    if len(runs) >= measure.process_limit:
        return True
    if measure.target is None or len(runs) < max(measure.processes, MIN_PROCESSES_FOR_TARGET):
        return False
    return is_resolved(_record(trial, settings, runs), measure.target)


def _run_process(run: _Run, start: Start, earlier: Sequence[WorkerRun]) -> WorkerRun:
    index, paths, settings = len(earlier), run.paths, run.settings
    if run.stop.is_set():  # between two processes; inside of one it is that one's outcome
        return WorkerRun(_interrupted(), paths.log(index))
    draw, of_draw = (0, index) if settings.measure.target else divmod(index, settings.measure.processes)
    cold = ["--cold"] if of_draw == 0 else []
    checked = _checked(draw, earlier)
    found = ["--checked", checked.artifact] if checked and checked.artifact else []
    if earlier and earlier[0].outcome.process and (steps := earlier[0].outcome.process.steps_per_block):
        found += ["--steps-per-block", str(steps)]
    arguments = ["--index", str(index), "--draw", str(draw), *cold, *found]
    outcome = _run_worker(run, _for_this(run, start, arguments, paths.cache(draw)), paths.log(index), index)
    return WorkerRun(_handed_on(outcome, checked), paths.log(index))


def _for_this(run: _Run, start: Start, arguments: Sequence[str], cache: Path) -> Start:
    """The start of one process, with the compile cache that belongs to it."""
    cores = ["--cores", ",".join(map(str, run.slot.cores))] if run.slot.cores else []
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor"),
        "TRITON_CACHE_DIR": str(cache.resolve() / "triton"),
    }
    return Start([*start.command, str(run.paths.trial), *cores, *arguments], {**start.environment, **caches})


def _checked(draw: int, earlier: Sequence[WorkerRun]) -> Process | None:
    """The process of the draw whose compiled step was found right; those that run the same code need no check."""
    processes = (item.outcome.process for item in earlier)
    of_draw = (item for item in processes if item is not None and item.draw == draw)
    return next((item for item in of_draw if item.accuracy and item.accuracy.passed), None)


def _handed_on(outcome: Outcome, checked: Process | None) -> Outcome:
    """The verdict on the code goes with the code."""
    process = outcome.process
    if process is None or process.accuracy or checked is None or not process.rounds:
        return outcome
    if checked.accuracy is None or process.artifact != checked.artifact:
        return outcome
    verdict = replace(checked.accuracy, of_process=checked.index)
    return replace(outcome, process=replace(process, accuracy=verdict))


def _interrupted(phase: str = "starting") -> Outcome:
    return Outcome("interrupted", phase, "interrupted by the user")


def _run_worker(run: _Run, start: Start, log: Path, index: int) -> Outcome:
    """Start one worker and wait for its last word, as long as its limits allow."""
    turns, measure = run.slot.turns, run.settings.measure
    with _started(start, log, turns) as (process, pipe, member):
        clock = Clock(measure, lambda: turns.idle_s(member))

        def on_phase(phase: str) -> None:
            clock.enter(phase)
            run.on_phase(phase, index)

        listener = WorkerChannel(on_phase, lambda wants: turns.ask(member, wants))
        try:
            in_time = listen(process, pipe, listener, clock, run.stop)
        except ValueError as error:
            return Outcome("crashed", listener.phase, f"the worker's answer cannot be understood: {error}")
        finally:
            run.idle_s.append(turns.idle_s(member))
        if run.stop.is_set() and listener.outcome is None:
            return _interrupted(listener.phase)
        if not in_time:
            exceeded = clock.exceeded()
            process.send_signal(signal.SIGUSR1)  # the worker's fault handler writes every thread's stack to the log
            time.sleep(GRACE_S)
            return Outcome("timeout", listener.phase, f"still {listener.phase} after {exceeded}")
        if listener.outcome is not None:
            return listener.outcome
        return Outcome("crashed", listener.phase, _how_it_ended(process.wait()))


@contextmanager
def _started(start: Start, log: Path, turns: DeviceLease) -> Iterator[tuple[subprocess.Popen[bytes], int, Member]]:
    """A worker in a process group of its own and the pipe that it answers on; the whole group is gone afterwards.

    The worker holds the other end of `stdin`: when this process dies, that closes, and the worker ends itself. Its turn
    ends when it is gone, with all that it had on the device.
    """
    receive, send = os.pipe()
    inherited = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*start.command, "--answer-fd", str(send)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[send],
            start_new_session=True,
            env={**inherited, **start.environment},
        )
    os.close(send)
    assert process.stdin
    with process.stdin, turns.member(process.pid, lambda grant: _send(process, grant)) as member:
        try:
            yield process, receive, member
        finally:
            os.close(receive)
            _kill_group(process)


def _send(process: subprocess.Popen[bytes], grant: LeaseGrant) -> None:
    assert process.stdin
    with suppress(BrokenPipeError):  # it has just ended; whoever listens to it will see that
        os.write(process.stdin.fileno(), grant.dumps().encode())


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # every process of the group has already ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the worker exited with code {code} without a result"
    name = signal.Signals(-code).name
    hint = "; the kernel kills so when memory runs out" if -code == signal.SIGKILL else ""
    return f"the worker was killed by {name}{hint}"


def _record(trial: Trial, settings: Settings, runs: list[WorkerRun], smaller_batch_size: int | None = None) -> Record:
    """Put the outcomes of a trial's processes together; the last one decides the status."""
    last = runs[-1]
    outcomes = [run.outcome for run in runs]
    failed = last.outcome.status != "ok"
    record = Record(
        trial_id=trial.id,
        sweep=settings.sweep,
        label=trial.label,
        status=last.outcome.status,
        trial=trial,
        phase=last.outcome.phase if failed else None,
        message=last.outcome.message if failed else None,
        log=last.log.name if failed else None,
        environment=next((o.environment for o in outcomes if o.environment), {}),
        processes=tuple(o.process for o in outcomes if o.process is not None),
        diagnostics=next((o.diagnostics for o in outcomes if o.diagnostics), None),
        smaller_batch_size=smaller_batch_size,
    )
    return replace(record, flags=find_flags(record, settings.measure))
