"""Work of a large report beside other work of it, in a forked process: it has all that was made before, and sends back
what it finds.

Only where that is safe: in `python -m sweeper.report`, which has nothing open that a fork could spoil, on Linux and
with no other thread of Python's. Elsewhere the work is done where it is asked for, in its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


def cores() -> int:
    """How many processes can work at once; 1 where none may be forked."""
    may_fork = sys.platform == "linux" and threading.active_count() == 1
    return len(os.sched_getaffinity(0)) if may_fork else 1


def beside(work: Callable[[], T], cores: int) -> Callable[[], T]:
    """Begin some work in a process of its own, with several cores. What is returned waits for it, and gives or raises
    what it has.
    """
    if cores == 1:
        return work
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=_send, args=(work, sender))
    process.start()
    sender.close()

    def result() -> T:
        try:
            found, error = receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"a process of this report ended with exit code {process.exitcode}") from None
        process.join()
        if error is not None:
            raise error
        value: T = found
        return value

    return result


def _send(work: Callable[[], object], sender: Connection) -> None:
    try:
        found = work()
    except Exception as error:  # noqa: BLE001  # it is raised where the work was asked for
        sender.send((None, error))
    else:
        sender.send((found, None))
