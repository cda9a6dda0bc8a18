"""Worker channel: what a worker says, how long it has been running, and when the runner has heard enough."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable

from sweeper.core.protocol import LeaseRequest, Outcome, Phase, decode
from sweeper.core.settings import Measure

POLL_S = 0.5


class Clock:
    """How long a worker and its phase have been running; what it waited or was stopped does not count."""

    def __init__(self, measure: Measure, idle_s: Callable[[], float]) -> None:
        self._measure, self._idle_s = measure, idle_s
        self._phase = "starting"
        self._begin_s = self._phase_begin_s = self._now_s()

    def enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase, self._phase_begin_s = phase, self._now_s()

    def next_limit(self) -> tuple[float, str]:
        """The seconds that are left until the nearest limit, and that limit as the user would type it."""
        now_s, measure = self._now_s(), self._measure
        limits = [(self._begin_s + measure.timeout_s - now_s, f"measure.timeout_s={measure.timeout_s:g}")]
        phase_s = measure.phase_timeouts_s.get(self._phase)
        if phase_s is not None:
            name = f"measure.phase_timeouts_s.{self._phase}={phase_s:g}"
            limits.append((self._phase_begin_s + phase_s - now_s, name))
        return min(limits)

    def _now_s(self) -> float:
        return time.monotonic() - self._idle_s()


class WorkerChannel:
    """The pipe that a worker answers on, and what was read from it so far."""

    def __init__(
        self, pipe: int, clock: Clock, on_phase: Callable[[str], None], on_lease_request: Callable[[str], None]
    ) -> None:
        self._pipe, self._clock = pipe, clock
        self._on_phase, self._on_lease_request = on_phase, on_lease_request
        self._tail = b""
        self.phase = "starting"
        self.outcome: Outcome | None = None

    def read(self, process: subprocess.Popen[bytes], stop: threading.Event) -> str | None:
        """Read until the worker has given its outcome or has ended, or `stop` is set.

        Returns the limit that came first, as the user would type it, or None. Besides the end of the pipe, which a
        child of the worker may hold open, it looks for the end of the process.
        Raises ValueError for what is no message.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while self.outcome is None and not stop.is_set():
                remaining_s, limit = self._clock.next_limit()
                if remaining_s <= 0:
                    return limit
                ended = process.poll() is not None
                if selector.select(0 if ended else min(remaining_s, POLL_S)):
                    data = os.read(self._pipe, 1 << 16)
                    if not data:
                        break
                    self._feed(data)
                elif ended:
                    break
        return None

    def _feed(self, data: bytes) -> None:
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            message = decode(line.decode())
            if isinstance(message, Phase):
                self.phase = message.name
                self._clock.enter(message.name)
                self._on_phase(message.name)
            elif isinstance(message, LeaseRequest):
                self._on_lease_request(message.wants)
            else:
                self.outcome = message
