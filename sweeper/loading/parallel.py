"""`start` starts work of a report in a forked process, which has everything that was made before.

That is safe only in `python -m sweeper.report`, which has nothing open that a fork could spoil, on
Linux and without other Python threads. Elsewhere the work is done when its result is asked for.
"""

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


def count_cores() -> int:
    """Count the processes that can work at the same time: 1 where none may be forked."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def start(work: Callable[[], T], cores: int) -> Callable[[], T]:
    """Start some work in a process of its own, if there are several cores.

    Returns a function that waits for the work, and returns or raises what the work does. The
    process never outlives this one.
    """
    if cores == 1 or threading.active_count() > 1:
        return work
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(work, receiver, sender), daemon=True)
    process.start()
    sender.close()

    def wait() -> T:
        found: T
        try:
            found, error = receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(
                f"a process of this report ended with exit code {process.exitcode}"
            ) from None
        process.join()
        if error is not None:
            raise error
        return found

    return wait


def _send(work: Callable[[], object], receiver: Connection, sender: Connection) -> None:
    receiver.close()  # so that the pipe breaks when the parent is gone
    try:
        sender.send((work(), None))
    except Exception as error:  # noqa: BLE001  # raised again where the result is asked for
        error.add_note(f"in a process of its own:\n{traceback.format_exc()}")
        sender.send((None, error))
