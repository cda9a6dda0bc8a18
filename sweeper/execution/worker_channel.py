"""Worker channel: both directions of a worker's messages, and the limits of time and size that the
worker has.

Nothing that a worker does blocks the driver: it writes without waiting, and it reads only what is
there.
"""

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sweeper.core.protocol import (
    NOT_UNDERSTOOD,
    LeaseNews,
    LeaseRequest,
    Outcome,
    Phase,
    ProtocolError,
    decode,
)
from sweeper.core.settings import Measure
from sweeper.core.system.orphans import WholeGroup

from . import processes
from .device_lease import DeviceLease, Tenant

CLOSED_S = 5.0  # for a worker to end after it has closed its pipe
# Of everything that a worker says; a usual answer has some ten thousand. The record of a worker,
# whose lines are indented by up to 24 spaces, stays below `files.MAX_JSON_BYTES`.
MAX_ANSWER_BYTES = 2**22


@dataclass
class WorkerChannel:
    """The pipe that a worker answers on, what was read from it so far, and the limits of the worker
    and its phases.

    Seconds in which the worker waited for the device or was stopped count in no limit.
    """

    pipe: int
    measure: Measure
    lease: DeviceLease
    tenant: Tenant
    on_phase: Callable[[Phase], None]
    phase: str = "starting"
    note: str = ""  # of what it does for long in this phase
    outcome: Outcome | None = None
    num_bytes: int = 0
    tail: bytes = b""  # the beginning of a line

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()
        self.begin_limits()

    def begin_limits(self) -> None:
        """Have all limits begin now: what a worker did ahead counts in none."""
        self._idle_before_s = self.lease.idle_s(self.tenant)
        self._begin_s = self._phase_begin_s = self._now_s()

    @property
    def idle_s(self) -> float:
        """Seconds in which the worker waited or was stopped, since its limits began."""
        return self.lease.idle_s(self.tenant) - self._idle_before_s

    def read(self, process: subprocess.Popen[bytes], stop: threading.Event) -> str | None:
        """Read until the worker has given its outcome or has ended, or `stop` is set.

        Returns the limit that came first, as the user would type it, or None. A limit counts once
        nothing is left to read: this process itself may have been stopped meanwhile. Besides the
        end of the pipe, which a child of the worker may hold open, it looks for the end of the
        process. Raises ProtocolError for what is no message, for too many bytes, and for a worker
        that closes its pipe and stays or does not read what it is sent. Until it is read, a worker
        that wants the device waits.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while self.outcome is None and not stop.is_set():
                if self.tenant.is_deaf:
                    raise ProtocolError("the worker does not read what it is sent")
                remaining_s, limit = self._find_limit()
                ended = process.poll() is not None
                if selector.select(0 if ended else min(max(remaining_s, 0.0), 0.5)):
                    data = os.read(self.pipe, 1 << 16)
                    if not data:
                        self._await_end(process, stop)
                        break
                    self._feed(data)
                elif ended:
                    break
                elif remaining_s <= 0:
                    return limit
        return None

    def _await_end(self, process: subprocess.Popen[bytes], stop: threading.Event) -> None:
        """Wait for the end of a worker that has closed its pipe, at most until `stop` is set."""
        deadline_s = self._now_s() + CLOSED_S
        while process.poll() is None and not stop.wait(0.05):
            if self._now_s() > deadline_s:
                raise ProtocolError(f"the worker closed its pipe and went on for {CLOSED_S:g} s")

    def _feed(self, data: bytes) -> None:
        self.num_bytes += len(data)
        if self.num_bytes > MAX_ANSWER_BYTES:
            raise ProtocolError(f"{NOT_UNDERSTOOD}: it has more than {MAX_ANSWER_BYTES >> 20} MiB")
        *lines, self.tail = (self.tail + data).split(b"\n")
        for line in lines:
            message = decode(line)
            if isinstance(message, Phase):
                if message.name != self.phase:
                    self.phase, self._phase_begin_s = message.name, self._now_s()
                self.note = message.note
                self.on_phase(message)
            elif isinstance(message, LeaseRequest):
                self.lease.request(self.tenant, message.wants, message.asked_s)
            else:
                self.outcome = message
                return

    def _find_limit(self) -> tuple[float, str]:
        """Find the nearest limit: the seconds that are left until it, and how the user would type
        it.
        """
        now_s, measure = self._now_s(), self.measure
        limits = [
            (self._begin_s + measure.timeout_s - now_s, f"measure.timeout_s={measure.timeout_s:g}")
        ]
        phase_s = measure.phase_timeouts_s.get(self.phase)
        if phase_s is not None:
            name = f"measure.phase_timeouts_s.{self.phase}={phase_s:g}"
            limits.append((self._phase_begin_s + phase_s - now_s, name))
        return min(limits)

    def _now_s(self) -> float:
        return time.monotonic() - self.idle_s


@contextmanager
def start_worker(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    measure: Measure,
    lease: DeviceLease,
    on_phase: Callable[[Phase], None],
    index: int = 0,
) -> Iterator[tuple[WholeGroup, WorkerChannel]]:
    """Run a worker, process `index` of its trial, while the body runs; gives its process and the
    channel to it. Raises OSError where it cannot be started.

    The worker holds the other end of `stdin`: when this process dies, the pipe closes and the
    worker exits. Its lease ends once the worker has exited and its device memory is free.
    """
    receive, send = os.pipe()
    with os.fdopen(receive, "rb"):
        with os.fdopen(send, "wb"):
            process = processes.start_group(
                [*command, "--answer-fd", str(send)],
                environment,
                log,
                stdin=subprocess.PIPE,
                pass_fds=[send],
            )
        stdin, process.stdin = process.stdin, None  # open until the lease has ended
        assert stdin is not None
        os.set_blocking(stdin.fileno(), False)
        send_to = partial(send_news, stdin.fileno())
        with stdin, lease.register(process.pid, send_to, index) as tenant, process:
            yield process, WorkerChannel(receive, measure, lease, tenant, on_phase)


def send_news(pipe: int, news: LeaseNews) -> bool:
    """Write to a worker's standard input, which does not block; False where the pipe is full.

    What is written is shorter than PIPE_BUF, so it is written as a whole or not at all.
    """
    try:
        os.write(pipe, news.dumps().encode())
    except BlockingIOError:
        return False
    except BrokenPipeError:  # the worker has just ended; the reader of its channel will notice
        pass
    return True
