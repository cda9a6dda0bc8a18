"""Entry point of the process in which a script runs: `python -m sweeper.worker.scripts trial.json
PASS --answer-fd N`.

It answers with phases and one outcome, as a worker does, and ends the script. Whatever the script
does to its process (signals, descriptors, folders, exit) stays in here.
"""

import argparse
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from sweeper.core.protocol import Job, Message, encode
from sweeper.core.record import EAGER_PHASES, Process, ScriptRun
from sweeper.worker import failures
from sweeper.worker.lease import Lease
from sweeper.worker.measurement.bench import Steps
from sweeper.worker.monitoring import environment, torch_flags
from sweeper.worker.parent_death import die_with_parent
from sweeper.worker.session import ProcessLog

from . import phases, trajectories
from .arms import Arms
from .compile_calls import CompileCalls
from .description import describe
from .last_line import describe_last_line, measure_log
from .loop import Loop
from .loop_time import LoopFacts
from .runs import RUNS
from .script_runner import EndOfScript, Program
from .setup import ScriptSetup
from .several_processes import refuse_several
from .source_lines import describe_in_script, find_own_line


class ScriptExit(failures.Failure):
    """The script has ended itself, with a message or an exit code other than 0."""

    def __init__(self, error: SystemExit, begin: int, phase: str) -> None:
        """`begin`: bytes of the log before the script ran."""
        self.status = "eager_error" if phase in EAGER_PHASES else "runtime_error"
        text = f"the script ended with the message: {error.code}"
        if isinstance(error.code, int):
            sys.stderr.flush()
            text = f"the script ended with exit code {error.code}{describe_last_line(begin)}"
        super().__init__(": ".join(filter(None, (find_own_line(error), text))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sweeper.worker.scripts", description=__doc__)
    add = parser.add_argument
    add("trial", type=Path)
    add("which", choices=RUNS)
    add("--known", default="{}", help="JSON: what earlier runs have shown of the loop")
    add("--answer-fd", type=int, default=1)
    arguments = parser.parse_args()
    answer = os.fdopen(arguments.answer_fd, "w")
    os.set_inheritable(answer.fileno(), False)
    die_with_parent()

    def say(message: Message) -> None:
        answer.write(encode(message))
        answer.flush()

    # or nobody sees the end
    os.register_at_fork(after_in_child=lambda: os.close(arguments.answer_fd))
    job = Job.loads(arguments.trial.read_text())
    notes = ProcessLog(say, Process(0, 0, cold=False), Lease())
    run_script(job, choose_phases(arguments), notes, say)


def choose_phases(arguments: argparse.Namespace) -> Callable[[ScriptSetup], Steps[None]]:
    """Choose the phases that a script goes through in a pass."""
    kind, _, arm = arguments.which.partition("_")
    if kind == "steps":
        return phases.compare_steps
    if kind == "loop":
        return partial(phases.run_loop, arm=arm, known=LoopFacts(**json.loads(arguments.known)))
    return trajectories.compare_trajectory


def run_script(
    job: Job,
    phases_of: Callable[[ScriptSetup], Steps[None]],
    notes: ProcessLog,
    say: Callable[[Message], None],
) -> None:
    """Run the script of a job until what the pass measures is there, and say how it went."""
    notes.environment |= environment.describe()
    program = Program.of(job.trial.model)
    sha256 = None if program.file is None else hashlib.sha256(program.file.read_bytes()).hexdigest()
    notes.add(script=ScriptRun(sha256))
    calls = CompileCalls()
    arms = Arms(job.trial, calls)
    holder: list[ScriptSetup] = []

    def begin(loop: Loop) -> Steps[None]:
        holder.append(ScriptSetup(job, notes, loop, calls, arms, sha256))
        return phases_of(holder[0])

    def end(error: Exception | None) -> None:
        arms.stop()
        calls.stop()
        setup = holder[0]
        if setup.has_begun:
            notes.add(script=describe(setup))
            notes.environment["device"] = environment.describe_device(setup.device)
            notes.settings |= torch_flags.read()
        if error is None:
            say(notes.outcome("ok"))
            return
        traceback.print_exception(error)
        status = failures.choose_status(error, notes.phase)
        say(notes.outcome(status, notes.phase, describe_in_script(error)))

    loop = Loop(begin, end)
    os.register_at_fork(after_in_child=loop.stop)  # a child's steps are not the script's

    def refuse(reason: str) -> NoReturn:
        loop.finish(
            failures.UnavailableError(
                f"{reason}; sweeper measures scripts that train in one, on one device"
            )
        )
        raise EndOfScript

    refuse_several(refuse)
    before = measure_log()
    try:
        program.run()
    except EndOfScript:
        pass
    except SystemExit as error:
        failed = error.code not in (None, 0)
        loop.finish(ScriptExit(error, before, notes.phase) if failed else None)
    except Exception as error:  # noqa: BLE001  # whatever a script raises is the result
        loop.finish(error)
    loop.finish()
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
