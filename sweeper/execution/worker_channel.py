"""Listening to a worker: what it says, how long it has been at it, and when the runner has heard enough.

Place in the flow: `runner` starts a worker and listens here until its last word, its end or a limit.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sweeper.core.protocol import LeaseRequest, Outcome, Phase, decode
from sweeper.core.settings import Measure

POLL_S = 0.5


@dataclass
class WorkerChannel:
    """What was heard from a worker so far."""

    on_phase: Callable[[str], None]
    on_lease_request: Callable[[str], None] = lambda _wants: None
    phase: str = "starting"
    outcome: Outcome | None = None
    _tail: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            message = decode(line.decode())
            if isinstance(message, Phase):
                self.phase = message.name
                self.on_phase(message.name)
            elif isinstance(message, LeaseRequest):
                self.on_lease_request(message.wants)
            else:
                self.outcome = message


class Clock:
    """How long a worker has been at it, and at its phase; what it waited or was stopped does not count."""

    def __init__(self, measure: Measure, idle_s: Callable[[], float]) -> None:
        self._measure, self._idle_s = measure, idle_s
        self._phase = "starting"
        self._begin = self._phase_begin = self._now()

    def enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase, self._phase_begin = phase, self._now()

    def remaining_s(self) -> float:
        return min(remaining_s for remaining_s, _ in self._limits())

    def exceeded(self) -> str:
        """The limit that is nearest, as the user would type it."""
        return min(self._limits())[1]

    def _limits(self) -> list[tuple[float, str]]:
        now, measure = self._now(), self._measure
        limits = [(self._begin + measure.timeout_s - now, f"measure.timeout_s={measure.timeout_s:g}")]
        of_phase = measure.phase_timeouts_s.get(self._phase)
        if of_phase is not None:
            name = f"measure.phase_timeouts_s.{self._phase}={of_phase:g}"
            limits.append((self._phase_begin + of_phase - now, name))
        return limits

    def _now(self) -> float:
        return time.monotonic() - self._idle_s()


def listen(
    process: subprocess.Popen[bytes], pipe: int, listener: WorkerChannel, clock: Clock, stop: threading.Event
) -> bool:
    """Read until the worker has said its last word or has ended, or shall stop; False when a limit came first.

    The end of the process is looked for as well as that of the pipe, which a child of the worker may hold open.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while listener.outcome is None and not stop.is_set():
            remaining_s = clock.remaining_s()
            if remaining_s <= 0:
                return False
            ended = process.poll() is not None
            if selector.select(0 if ended else min(remaining_s, POLL_S)):
                data = os.read(pipe, 1 << 16)
                if not data:
                    return True
                listener.feed(data)
            elif ended:
                return True
    return True
