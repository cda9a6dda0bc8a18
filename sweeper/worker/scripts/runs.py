"""Leads a worker through the runs of a script, each a child of its own, and puts their results
together: its steps in both arms, its loop in eager, its loop compiled, and its trajectory if asked.

Nothing here needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from sweeper.core.libraries import SCRIPT
from sweeper.core.protocol import ALONE, Job, Outcome
from sweeper.core.record import EAGER_PHASES, Diagnostics, HostState, ScriptRun, Trajectory
from sweeper.core.serialization import drop_defaults
from sweeper.core.system.process_group import describe_signal
from sweeper.worker import failures
from sweeper.worker.children import run_child
from sweeper.worker.process_log import ProcessLog

from .watch.last_line import describe_last_line, measure_log

STEPS = "steps"
EAGER_LOOP = "loop_eager"
LOOPS = {EAGER_LOOP: "eager", "loop_compiled": "compiled"}  # with the arm of each throughout
TRAJECTORY = "trajectory"
RUNS = (STEPS, *LOOPS, TRAJECTORY)
RESERVE_S = 10.0  # of the worker's time, to answer with what there is
LAUNCHER_S = 2.0  # of a launcher's time, to say where its ranks are


def make_parser(module: str) -> argparse.ArgumentParser:
    """Make the parser of a child that runs the script once, in one process or by its launcher."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    add = parser.add_argument
    add("trial", type=Path)
    add("which", choices=RUNS)
    add("--known", default="{}", help="JSON: what earlier runs have seen of the script")
    add("--answer-fd", type=int, default=1)
    return parser


def run_all(trial: Path, job: Job, log: ProcessLog) -> None:
    """Run the script of a job, in the file `trial`, for each thing to measure, one run after the
    other, with the device alone.
    """
    log.lease.take(ALONE)
    is_launched = job.trial.launch is not None
    deadline = time.monotonic() + job.measure.timeout_s - RESERVE_S
    # our own loop does nothing beside its steps
    loops = LOOPS if job.trial.workload == SCRIPT else ()
    for which in (STEPS, *loops):
        outcome = _run(trial, which, log, deadline, is_launched)
        _merge(outcome, which, log)
        status, message = outcome.status, outcome.message or outcome.status
        if status == "ok":
            continue
        log.phase = outcome.phase or log.phase
        # what fails in a loop that has run nothing compiled is the script's own
        if which == EAGER_LOOP and status in ("runtime_error", "crashed"):
            status, message = "eager_error", f"in its loop in eager: {message}"
        raise failures.Failure(message, status)
    if not job.trial.model.asked_trajectory or log.slot.index or job.trial.mode == "eager":
        return
    outcome = _run(trial, TRAJECTORY, log, deadline)
    # if the run fails or is late, this says so; what was measured before stays
    trajectory = Trajectory(0, None, outcome.message or outcome.status)
    if outcome.process and outcome.process.script:
        trajectory = outcome.process.script.trajectory or trajectory
    log.add_to_script(trajectory=trajectory)


def _merge(outcome: Outcome, which: str, log: ProcessLog) -> None:
    """Take the figures of the first run, and of the others how long their loops took, and the
    largest share of the host that others took meanwhile.
    """
    own, process = log.process, outcome.process
    if process is None:
        return
    if which == STEPS:
        log.environment |= outcome.environment
        if outcome.diagnostics:
            log.diagnostics = _shorten_places(outcome.diagnostics)
        # a child does not know which process of the trial it belongs to
        log.process = replace(process, index=own.index, draw=own.draw, cold=own.cold)
        log.add(phases_s={**own.phases_s, **process.phases_s})
        return
    if process.host and (busy := process.host.busy_while_measuring) is not None:
        host = own.host or HostState()
        busy = max(busy, host.busy_while_measuring or 0.0)
        log.add(host=replace(host, busy_while_measuring=busy))
    seen, first = process.script, own.script
    if seen is None or first is None:
        return
    log.add_to_script(
        length=first.length or seen.length, loop_eager=seen.loop_eager or first.loop_eager
    )
    if seen.loop_compiled is not None:
        log.add_to_script(
            loop_compiled=seen.loop_compiled,
            shapes=seen.shapes,  # it has seen what the loader gives
            num_shapes=seen.num_shapes,
            sizes=seen.sizes,
            pad_to=seen.pad_to,
            ranks=tuple(  # a loop reads no memory
                replace(one, allocator_peak_bytes=before.allocator_peak_bytes)
                for one, before in zip(seen.ranks, first.ranks or seen.ranks, strict=True)
            ),
        )


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


def _run(
    trial: Path, which: str, log: ProcessLog, deadline: float, is_launched: bool = False
) -> Outcome:
    """Run the script once, in as many processes as it has."""
    seen = replace(log.process.script or ScriptRun(), shapes=(), sizes=())  # which may be many
    known = json.dumps(drop_defaults(seen))
    print("run of the script:", which, known, flush=True)  # into the log
    begin = measure_log()
    module, options = "sweeper.worker.scripts", ["--known", known]
    if is_launched:
        left_s = deadline - time.monotonic() - LAUNCHER_S
        module, options = f"{module}.launcher", [*options, "--timeout-s", str(left_s)]
    command = [sys.executable, "-m", module, str(trial.resolve()), which, *options]
    ended = run_child(command, log, deadline)
    if isinstance(ended, Outcome):
        return ended
    return explain_end(ended, log.phase, describe_last_line(begin))


def explain_end(code: int | None, phase: str, last_line: str) -> Outcome:
    """Say how a script ended its process, whose exit code may not be known."""
    how = "ended its process"
    if code is not None:
        how = f"{how} with exit code {code}" if code >= 0 else describe_signal(-code)
    status = "eager_error" if phase in EAGER_PHASES else "crashed"
    message = f"the script {how}, before enough steps were seen{last_line}"
    return Outcome(status, phase, message)
