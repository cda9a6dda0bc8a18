"""Children of a worker: processes that answer as a worker does, each in a process group of its own
that ends with it, as all that it has started.
"""

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from sweeper.core.protocol import Message, Outcome, Phase, decode, encode
from sweeper.core.system.orphans import WholeGroup
from sweeper.core.system.process_group import ProcessGroup

from .process_log import ProcessLog

POLL_S = 0.5  # of looking whether a child has ended without closing its pipe
CLEAN_UP_S = 10.0  # for what a child does at its end, before its process group is killed


def open_answer(descriptor: int) -> Callable[[Message], None]:
    """Open the pipe on which a child answers: what it gets is a message of the protocol."""
    answer = os.fdopen(descriptor, "w")
    os.set_inheritable(descriptor, False)
    open_in = [descriptor]  # empty in a child, whose own children may have another file there

    def close_in_child() -> None:
        while open_in:
            os.close(open_in.pop())

    os.register_at_fork(after_in_child=close_in_child)  # or nobody sees the end

    def say(message: Message) -> None:
        answer.write(encode(message))
        answer.flush()

    return say


def run_child(command: Sequence[str], log: ProcessLog, deadline: float) -> Outcome | int:
    """Run a command that takes `--answer-fd`, and announce its phases until its outcome comes; its
    exit code where it ends without one.

    What it prints goes to the worker's log; it finds nothing on its standard input. The deadline is
    of `time.monotonic`.
    """
    with _start(command, deadline) as (child, answer):
        for line in _read_lines(child, answer):
            message = decode(line)
            if isinstance(message, Outcome):
                _await_end(child, deadline)
                return message
            if isinstance(message, Phase):
                log.phase = message.name
                log.say(message)
        code = _await_end(child, deadline)
    if time.monotonic() >= deadline:
        return Outcome("timeout", log.phase, "measure.timeout_s was over")
    if code is None:
        went_on = f"it closed its pipe and went on for {CLEAN_UP_S:g} s"
        return Outcome("crashed", log.phase, f"the run was ended: {went_on}")
    return code


def _read_lines(child: ProcessGroup, answer: int) -> Iterator[bytes]:
    """Read lines until the child has closed its pipe or has ended; what it has started may hold
    the pipe open.
    """
    tail = b""
    with selectors.DefaultSelector() as selector:
        selector.register(answer, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            if selector.select(0 if ended else POLL_S):
                data = os.read(answer, 1 << 16)
                if not data:
                    return
                *lines, tail = (tail + data).split(b"\n")
                yield from lines
            elif ended:
                return


def _await_end(child: ProcessGroup, deadline: float) -> int | None:
    """Wait for the end of a child that has said all; its exit code, None where it goes on."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(min(CLEAN_UP_S, max(0.0, deadline - time.monotonic())))
    return None


@contextmanager
def _start(command: Sequence[str], deadline: float) -> Iterator[tuple[ProcessGroup, int]]:
    """Start a child, with the pipe that it answers on, as long as the body runs, or until the
    deadline.
    """
    receive, send = os.pipe()
    with os.fdopen(receive, "rb"):
        with os.fdopen(send, "wb"):
            child = WholeGroup(
                [*command, "--answer-fd", str(send)],
                stdin=subprocess.DEVNULL,
                pass_fds=[send],
                start_new_session=True,
            )
        left_s = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
        limit = threading.Timer(left_s, child.kill)
        with child:
            limit.start()
            try:
                yield child, receive
            finally:
                limit.cancel()
