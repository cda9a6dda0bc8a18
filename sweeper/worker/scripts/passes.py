"""Leads a worker through the passes of a script, each a process of its own, and puts their results
together: its steps in both arms, its loop in eager, its loop compiled, and its trajectory if asked.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from sweeper.core.protocol import ALONE, Job, Outcome, Phase, decode
from sweeper.core.record import EAGER_PHASES, Diagnostics, HostState, ScriptRun, Trajectory
from sweeper.worker import failures
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.session import Task

from .last_line import describe_last_line, measure_log
from .loop_time import LoopFacts

EAGER_LOOP = "loop_eager"
STEPS = "steps"
MEASURING = (STEPS, EAGER_LOOP, "loop_compiled")
TRAJECTORY = "trajectory"
PASSES = (*MEASURING, TRAJECTORY)
RESERVE_S = 10.0  # of the worker's time, to answer with what there is
CLEAN_UP_S = 10.0  # for what a script does at its end, before its process group is killed


class ScriptError(failures.Failure):
    """A pass of the script did not end well; its status is the trial's."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message or outcome.status)
        self.status = outcome.status


def make_task(trial: Path) -> Task:
    """Make the task of a worker whose job, in the file `trial`, is a script."""
    return partial(_run_passes, trial)


def _run_passes(trial: Path, job: Job, notes: ProcessLog) -> None:
    """Run all passes, one after the other, with the device alone."""
    notes.lease.take(ALONE)
    deadline = time.monotonic() + job.measure.timeout_s - RESERVE_S
    for which in MEASURING:
        outcome = _run_pass(trial, which, notes)
        _take_over(outcome, which, notes)
        if outcome.status != "ok":
            notes.phase = outcome.phase or notes.phase
            raise ScriptError(_blame_eager(outcome) if which == EAGER_LOOP else outcome)
    if job.trial.model.asked_trajectory and notes.slot.index == 0 and job.trial.mode != "eager":
        _follow(trial, notes, deadline)


def _blame_eager(outcome: Outcome) -> Outcome:
    """What fails in a loop that has run nothing compiled is the script's own."""
    if outcome.status not in ("runtime_error", "crashed"):
        return outcome
    return replace(
        outcome, status="eager_error", message=f"in its loop in eager: {outcome.message}"
    )


def _follow(trial: Path, notes: ProcessLog, deadline: float) -> None:
    """Add the trajectory. If its pass fails or is late, the trajectory says so; what was measured
    before stays.
    """
    outcome = _run_pass(trial, TRAJECTORY, notes, deadline)
    trajectory = Trajectory(0, None, outcome.message or outcome.status)
    if outcome.process and outcome.process.script:
        trajectory = outcome.process.script.trajectory or trajectory
    script = notes.process.script or ScriptRun()
    notes.add(script=replace(script, trajectory=trajectory))


def _take_over(outcome: Outcome, which: str, notes: ProcessLog) -> None:
    """Take the figures of the first pass, and of the others how long their loops took. A pass does
    not know which process of the trial it belongs to.
    """
    process = outcome.process
    if process is None:
        return
    if which == MEASURING[0]:
        own, notes.process = notes.process, process
        phases_s = {**own.phases_s, **process.phases_s}
        notes.add(index=own.index, draw=own.draw, cold=own.cold, phases_s=phases_s)
        notes.environment |= outcome.environment
        notes.diagnostics = _shorten_places(outcome.diagnostics) if outcome.diagnostics else None
    elif process.host is not None:  # the larger share that others took, of the rounds and the loops
        host = notes.process.host or HostState()
        shares = (host.busy_while_measuring, process.host.busy_while_measuring)
        known = [share for share in shares if share is not None]
        notes.add(host=replace(host, busy_while_measuring=max(known, default=None)))
    seen = process.script
    if seen is None:
        return
    first = notes.process.script or seen
    first = replace(first, length=first.length or seen.length)
    if seen.loop_eager is not None:
        first = replace(first, loop_eager=seen.loop_eager)
    if seen.loop_compiled is not None:
        first = replace(
            first,
            loop_compiled=seen.loop_compiled,
            shapes=seen.shapes,  # it has seen what the loader gives
            num_shapes=seen.num_shapes,
            sizes=seen.sizes,
            pad_to=seen.pad_to,
        )
    notes.add(script=first)


def _shorten_places(diagnostics: Diagnostics) -> Diagnostics:
    """Name places in the folder of the sweep as the user would: the script ran with an absolute
    path.
    """
    begin = f"{Path.cwd()}{os.sep}"
    breaks = tuple(
        replace(item, where=(item.where or "").removeprefix(begin) or None)
        for item in diagnostics.graph_breaks
    )
    return replace(diagnostics, graph_breaks=breaks)


def _run_pass(trial: Path, which: str, notes: ProcessLog, deadline: float = math.inf) -> Outcome:
    """Run the script once. What it prints goes to the worker's log; it finds nothing on its
    standard input.
    """
    known = json.dumps(asdict(LoopFacts.of(notes.process.script or ScriptRun())))
    print("run of the script:", which, known, flush=True)  # into the log
    begin = measure_log()
    receive, send = os.pipe()
    command = [sys.executable, "-m", "sweeper.worker.scripts", str(trial.resolve()), which]
    command += ["--known", known, "--answer-fd", str(send)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[send], start_new_session=True
    ) as process:
        os.close(send)
        left_s = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
        limit = threading.Timer(left_s, _kill, [process])
        limit.start()
        try:
            outcome = _read_answer(receive, notes)
            if outcome is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CLEAN_UP_S)
        finally:
            limit.cancel()
            _kill(process)
        code = process.wait()
    if outcome is not None:
        return outcome
    if time.monotonic() >= deadline:
        return Outcome("timeout", notes.phase, "measure.timeout_s was over")
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code < 0
        else f"ended its process with exit code {code}"
    )
    status = "eager_error" if notes.phase in EAGER_PHASES else "crashed"
    message = f"the script {how}, before enough steps were seen{describe_last_line(begin)}"
    return Outcome(status, notes.phase, message)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of a pass, with the workers of its loaders."""
    with suppress(ProcessLookupError):  # every process of the group has ended
        os.killpg(process.pid, signal.SIGKILL)


def _read_answer(receive: int, notes: ProcessLog) -> Outcome | None:
    """Announce the phases of a pass until its outcome comes; None where the script ends its process
    before.
    """
    with os.fdopen(receive, "rb") as lines:
        for line in lines:
            message = decode(line)
            if isinstance(message, Outcome):
                return message
            if isinstance(message, Phase):
                notes.phase = message.name
                notes.say(message)
    return None
