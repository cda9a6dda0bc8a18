"""One trial: start its worker processes, listen, end what runs too long, and make a record of whatever happened.

Place in the flow: `execute` calls `run_trial` for each trial; it always returns a record. Workers are started as
`python -m sweeper.worker trial.json ...` in a process group of their own, so that nothing they started outlives them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.flags import flags_of, is_resolved
from sweeper.interpreter import command, search_path
from sweeper.messages import Job, Outcome, Phase, decode
from sweeper.paths import SweepPaths, TrialPaths, write_text
from sweeper.record import Record
from sweeper.scheduler import Slot
from sweeper.settings import FEWEST_FOR_A_TARGET, Settings
from sweeper.trial import Trial

WORKER = "sweeper.worker"
POLL_S = 0.5
GRACE_S = 1.0  # for a hanging worker to write its stack to the log before it is killed
OnPhase = Callable[[str, int], None]  # phase, index of the process


@dataclass(frozen=True)
class Start:
    """How a worker is started: its command line, and what its environment says beside the driver's."""

    command: Sequence[str]
    environment: Mapping[str, str]
    cores: tuple[int, ...] | None = None  # that it may run on; None: all


@dataclass(frozen=True)
class WorkerRun:
    """How one worker process ended: with an outcome of its own, or without one and why."""

    outcome: Outcome
    log: Path


@dataclass
class _Listener:
    """What was heard from a worker so far."""

    on_phase: Callable[[str], None]
    phase: str = "starting"
    outcome: Outcome | None = None
    _tail: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            message = decode(line.decode())
            if isinstance(message, Phase):
                self.phase = message.name
                self.on_phase(message.name)
            else:
                self.outcome = message


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
    begin, stop = time.monotonic(), stop or threading.Event()
    record = _attempt(trial, settings, slot, on_phase, stop)
    while record.status == "oom" and settings.measure.back_off and record.batch_size > 1:
        record = _attempt(trial, settings, slot, on_phase, stop, record.batch_size // 2)
    return replace(record, wall_s=time.monotonic() - begin)


def _attempt(
    trial: Trial,
    settings: Settings,
    slot: Slot,
    on_phase: OnPhase,
    stop: threading.Event,
    batch_size: int | None = None,
) -> Record:
    """Run the worker processes of a trial, one after the other, until there are enough or one is not ok."""
    paths = SweepPaths.of(settings.sweep).trial(trial.label, trial.id)
    paths.clear_caches()
    paths.clear_logs()
    own = replace(trial, batch_size=batch_size) if batch_size else trial
    write_text(paths.trial, Job(own, settings.measure).dumps())
    runs: list[WorkerRun] = []
    try:
        with search_path(trial.python) as variables:
            start = Start(command(trial.python, WORKER), {**slot.device.environment(), **variables}, slot.cores)
            while not _enough(trial, settings, runs):
                runs.append(_run_process(paths, settings, start, len(runs), on_phase, stop))
    finally:
        paths.clear_caches()
    return _record(trial, settings, runs, batch_size)


def _enough(trial: Trial, settings: Settings, runs: list[WorkerRun]) -> bool:
    """Whether no further process is wanted; with a target that is seen from the interval so far."""
    if runs and runs[-1].outcome.status != "ok":
        return True
    measure = settings.measure
    if len(runs) >= measure.most_processes:
        return True
    if measure.target is None or len(runs) < max(measure.processes, FEWEST_FOR_A_TARGET):
        return False
    return is_resolved(_record(trial, settings, runs), measure.target)


def _run_process(
    paths: TrialPaths, settings: Settings, start: Start, index: int, on_phase: OnPhase, stop: threading.Event
) -> WorkerRun:
    if stop.is_set():  # between two processes; inside of one it is that one's outcome
        return WorkerRun(Outcome("interrupted", "starting", "interrupted by the user"), paths.log(index))
    draw, of_draw = (0, index) if settings.measure.target else divmod(index, settings.measure.processes)
    cache = paths.cache(draw).resolve()
    cores = ["--cores", ",".join(map(str, start.cores))] if start.cores else []
    cold = ["--cold"] if of_draw == 0 else []
    arguments = [str(paths.trial), *cores, "--index", str(index), "--draw", str(draw), *cold]
    environment = {
        **start.environment,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    listener = _Listener(lambda phase: on_phase(phase, index))
    own = Start([*start.command, *arguments], environment)
    outcome = _run_worker(own, paths.log(index), listener, settings.measure.timeout_s, stop)
    return WorkerRun(outcome, paths.log(index))


def _run_worker(start: Start, log: Path, listener: _Listener, timeout_s: float, stop: threading.Event) -> Outcome:
    """Start one worker and wait for its last word, at most `timeout_s` wall seconds."""
    with _started(start, log) as (process, pipe):
        try:
            in_time = _listen(process, pipe, listener, time.monotonic() + timeout_s, stop)
        except ValueError as error:
            return Outcome("crashed", listener.phase, f"the worker's answer cannot be understood: {error}")
        if stop.is_set() and listener.outcome is None:
            return Outcome("interrupted", listener.phase, "interrupted by the user")
        if not in_time:
            process.send_signal(signal.SIGUSR1)  # the worker's fault handler writes every thread's stack to the log
            time.sleep(GRACE_S)
            return Outcome("timeout", listener.phase, f"still {listener.phase} after measure.timeout_s={timeout_s:g}")
        if listener.outcome is not None:
            return listener.outcome
        return Outcome("crashed", listener.phase, _how_it_ended(process.wait()))


@contextmanager
def _started(start: Start, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker in a process group of its own and the pipe that it answers on; the whole group is gone afterwards.

    The worker holds the other end of `stdin`: when this process dies, that closes, and the worker ends itself.
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
    try:
        yield process, receive
    finally:
        os.close(receive)
        _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # every process of the group has already ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def _listen(
    process: subprocess.Popen[bytes], pipe: int, listener: _Listener, deadline: float, stop: threading.Event
) -> bool:
    """Read until the worker has said its last word or has ended, or shall stop; False when the deadline came first.

    The end of the process is looked for as well as that of the pipe, which a child of the worker may hold open.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while listener.outcome is None and not stop.is_set():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            ended = process.poll() is not None
            if selector.select(0 if ended else min(remaining_s, POLL_S)):
                data = os.read(pipe, 1 << 16)
                if not data:
                    return True
                listener.feed(data)
            elif ended:
                return True
    return True


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
    return replace(record, flags=flags_of(record, settings.measure))
