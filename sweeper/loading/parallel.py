"""Work of a report beside other work of it, in a forked process: it has all that was made before, and sends back what
it finds.

Only where that is safe: in `python -m sweeper.report`, which has nothing open that a fork could spoil, on Linux and
with no other thread of Python's. Elsewhere the work is done where it is asked for, in its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


def cores() -> int:
    """How many processes can work at once; 1 where none may be forked."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def beside(work: Callable[[], T], cores: int) -> Callable[[], T]:
    """Begin some work in a process of its own, with several cores. What is returned waits for it, and gives or raises
    what it has. The process ends with this one, also when nobody waits for it.
    """
    if cores == 1 or threading.active_count() > 1:
        return work
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=_send, args=(work, receiver, sender), daemon=True)
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


def _send(work: Callable[[], object], receiver: Connection, sender: Connection) -> None:
    receiver.close()  # so that a parent which is gone breaks the pipe
    try:
        found = work()
    except Exception as error:  # noqa: BLE001  # it is raised where the work was asked for
        error.add_note(f"in a process of its own:\n{traceback.format_exc()}")
        sender.send((None, error))
    else:
        sender.send((found, None))
