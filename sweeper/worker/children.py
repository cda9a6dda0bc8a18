"""Children of a worker: processes that answer as a worker does, each in a process group of its own
that ends with it.
"""

import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO

from sweeper.core.protocol import Outcome, Phase, decode
from sweeper.core.record import HostState
from sweeper.core.system.process_group import ProcessGroup

from .process_log import ProcessLog

CLEAN_UP_S = 10.0  # for what a child does at its end, before its process group is killed


def run_child(command: Sequence[str], log: ProcessLog, deadline: float = math.inf) -> Outcome | int:
    """Run a command that takes `--answer-fd`, and announce its phases until its outcome comes; its
    exit code where it ends without one.

    What it prints goes to the worker's log; it finds nothing on its standard input. The deadline is
    of `time.monotonic`.
    """
    with _start(command, deadline) as (child, answer):
        for line in answer:
            message = decode(line)
            if isinstance(message, Outcome):
                with suppress(subprocess.TimeoutExpired):
                    child.wait(CLEAN_UP_S)
                return message
            if isinstance(message, Phase):
                log.phase = message.name
                log.say(message)
    if time.monotonic() >= deadline:
        return Outcome("timeout", log.phase, "measure.timeout_s was over")
    return child.wait()


@contextmanager
def _start(command: Sequence[str], deadline: float) -> Iterator[tuple[ProcessGroup, BinaryIO]]:
    """Start a child, with the pipe that it answers on, as long as the body runs, or until the
    deadline.
    """
    receive, send = os.pipe()
    with os.fdopen(receive, "rb") as answer:
        with os.fdopen(send, "wb"):
            child = ProcessGroup(
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
                yield child, answer
            finally:
                limit.cancel()


def take_over(outcome: Outcome, log: ProcessLog) -> None:
    """Take the figures of a child as the worker's own. A child does not know which process of the
    trial it belongs to.
    """
    own = log.process
    process = outcome.process or own
    phases_s = {**own.phases_s, **process.phases_s}
    log.process = replace(process, index=own.index, draw=own.draw, cold=own.cold, phases_s=phases_s)
    log.environment |= outcome.environment
    log.diagnostics = outcome.diagnostics


def add_load(busy: float | None, log: ProcessLog) -> None:
    """Note the share of the host that others took while a child measured, where it is the
    largest.
    """
    if busy is not None:
        host = log.process.host or HostState()
        busy = max(busy, host.busy_while_measuring or 0.0)
        log.add(host=replace(host, busy_while_measuring=busy))
