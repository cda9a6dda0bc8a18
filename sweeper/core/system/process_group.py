"""Processes that lead a group of their own, what they leave behind, and how a process ended."""

import ctypes
import os
import signal
from contextlib import suppress
from subprocess import Popen
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of init."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


class ProcessGroup(Popen[bytes]):
    """A process with a group of its own (`start_new_session`); the group ends with a `with`
    block.
    """

    def kill(self) -> None:
        """Kill every process of the group."""
        with suppress(ProcessLookupError):  # every process of the group has ended
            os.killpg(self.pid, signal.SIGKILL)

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


def describe_exit(code: int) -> str:
    """Say how a process ended and what may have ended it, as the rest of a sentence about it.

    The code is that of `subprocess`.
    """
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return f"{describe_signal(-code)}; the kernel kills so when memory runs out"
    return describe_signal(-code)


def describe_signal(number: int) -> str:
    """Say which signal killed a process; most real-time signals have no name."""
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"
