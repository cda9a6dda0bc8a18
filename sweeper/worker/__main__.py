"""Entry point of a worker process.

    python -m sweeper.worker runs/<sweep>/<trial>/trial.json      measure once, print the outcome (also under pdb)
    python -m sweeper.worker --check trials.json problems.json    say which trials cannot be built here

Place in the flow: started by `runner`, which passes `--answer-fd`; without it the answer goes to standard output.
The one broad `except` of the project stands in `session`: whatever a user's model raises becomes a status.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

from sweeper.messages import Job, Outcome, Phase, encode
from sweeper.worker.lifeline import end_with_the_parent_process


def main() -> None:
    arguments = _parse()
    if arguments.check:
        from sweeper.worker.check import check

        check(*arguments.check)
        os._exit(0)  # whatever a user's module registered for the end is not wanted here
    answer = os.fdopen(arguments.answer_fd, "w") if arguments.answer_fd is not None else sys.stdout
    if arguments.answer_fd is not None:
        os.set_inheritable(arguments.answer_fd, False)
        end_with_the_parent_process()  # should it be dead already, the watch on standard input sees it
        threading.Thread(target=_end_with_the_driver, daemon=True).start()
    if arguments.cores:
        os.sched_setaffinity(0, arguments.cores)  # before torch counts them
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    def say(message: Phase | Outcome) -> None:
        answer.write(encode(message))
        answer.flush()

    from sweeper.worker.session import run

    outcome = run(Job.loads(arguments.trial.read_text()), arguments.index, arguments.draw, arguments.cold, say)
    sys.stdout.flush()
    sys.stderr.flush()
    say(outcome)
    # Interpreter and CUDA teardown take seconds and nothing is left to lose.
    os._exit(0 if outcome.status == "ok" else 1)


def cores(text: str) -> set[int]:
    return {int(number) for number in text.split(",")}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sweeper.worker", description="Measure one trial in this process.")
    parser.add_argument("trial", type=Path, nargs="?", help="trial.json, as the runner writes it")
    parser.add_argument("--index", type=int, default=0, help="which process of the trial this is")
    parser.add_argument("--draw", type=int, default=0, help="which compile cache it belongs to")
    parser.add_argument("--cold", action="store_true", help="the compile cache is empty")
    parser.add_argument("--cores", type=cores, help="numbers of the cores to run on, separated by commas")
    parser.add_argument("--answer-fd", type=int, help="file descriptor for phases and the outcome, as JSON lines")
    parser.add_argument("--check", type=Path, nargs=2, metavar=("TRIALS", "PROBLEMS"), help="list what cannot be built")
    arguments = parser.parse_args()
    if not arguments.check and arguments.trial is None:
        parser.error("give the path of a trial.json")
    return arguments


def _end_with_the_driver() -> None:
    """The driver holds the other end of standard input; when it dies, however it dies, so do we and all we started."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
