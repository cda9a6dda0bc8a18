"""Entry point of a worker process.

    python -m sweeper.worker runs/<sweep>/<trial>/trial.json
        measure once, print the outcome (also under pdb)
    python -m sweeper.worker runs/<sweep>/<trial>/trial.json --inspect FOLDER
        write what the compiler does
    python -m sweeper.worker --check trials.jsonl answer.json
        say which trials cannot be built here

The driver passes `--answer-fd`; without it the answer goes to standard output. torch is imported
after the arguments are read, because what it reads of the environment has to be set before.
"""

import argparse
import faulthandler
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from sweeper.core.protocol import Job, ProcessSlot
from sweeper.core.serialization import from_json
from sweeper.core.system.pipes import flush_output, open_standard_streams
from sweeper.core.system.process_group import adopt_orphans

from .children import open_answer
from .driver_link import DriverLink
from .inspection import trace
from .lease import Lease
from .parent_death import die_with_parent
from .process_log import Task, run


def main() -> None:
    open_standard_streams()
    arguments = _parse()
    if arguments.check:
        _check(*arguments.check)
        os._exit(0)  # whatever a user's module registered for the end is not wanted here
    has_driver = arguments.answer_fd is not None
    say = open_answer(arguments.answer_fd if has_driver else os.dup(1))
    lease = Lease()
    if has_driver:
        driver = DriverLink(_take_standard_input(), say)
        lease = driver.lease
        adopt_orphans()
        die_with_parent()  # should it be dead already, the thread that listens sees it
        threading.Thread(target=driver.listen, daemon=True).start()
    slot = from_json(ProcessSlot, json.loads(arguments.slot))
    if slot.cores:
        os.sched_setaffinity(0, slot.cores)  # before torch counts them
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    job = Job.loads(arguments.trial.read_text())
    if numerics := job.trial.compile.options.get("numerics"):
        # torch 2.14 derives other settings of it when it is imported
        os.environ["TORCHINDUCTOR_NUMERICS"] = str(numerics)
    outcome = run(job, slot, say, lease, _choose_task(arguments, job))
    flush_output()
    say(outcome)
    # Interpreter and CUDA teardown take seconds and nothing is left to lose.
    os._exit(0 if outcome.status == "ok" else 1)


def _choose_task(arguments: argparse.Namespace, job: Job) -> Task:
    """What the process is to do, with the imports that it needs."""
    if arguments.inspect:
        trace.request_trace(os.environ)  # torch looks for it when it is imported
        from .inspection.run import inspect

        return partial(inspect, arguments.inspect)
    if job.trial.has_loop:
        from .scripts.runs import run_all

        return partial(run_all, arguments.trial)
    from .session import measure_model

    return measure_model


def _check(question: Path, answer: Path) -> None:
    try:
        import torch  # noqa: F401  # before anything that needs it
    except ImportError as error:
        problem = (
            f"this Python cannot import torch ({error}); install torch: {sys.executable} -m "
            "pip install torch"
        )
        answer.write_text(json.dumps({"problems": [problem], "notes": []}))
        return
    from .preflight import check

    check(question, answer)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.worker", description="Measure one trial in this process."
    )
    add = parser.add_argument
    add("trial", type=Path, nargs="?", help="trial.json, as the runner writes it")
    add(
        "--slot",
        default="{}",
        help="JSON: which process of the trial this is",
    )
    add("--answer-fd", type=int, help="file descriptor for phases and the outcome, as JSON lines")
    add(
        "--inspect",
        type=Path,
        metavar="FOLDER",
        help="write what the compiler does there, time nothing",
    )
    add(
        "--check",
        type=Path,
        nargs=2,
        metavar=("TRIALS", "ANSWER"),
        help="list what cannot be built",
    )
    arguments = parser.parse_args()
    if not arguments.check and arguments.trial is None:
        parser.error("give the path of a trial.json")
    return arguments


def _take_standard_input() -> int:
    """A descriptor of what was standard input; a model, or a program that it starts, finds nothing
    to read there.
    """
    own = os.dup(0)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    return own


if __name__ == "__main__":
    main()
