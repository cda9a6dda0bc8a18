"""Worker channel: reads the messages of a worker, and says which time limit the worker has exceeded."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable

from sweeper.core.protocol import LeaseRequest, Outcome, Phase, decode
from sweeper.core.settings import Measure
from sweeper.execution.device_lease import DeviceLease, Tenant

POLL_S = 0.5


class WorkerChannel:
    """The pipe that a worker answers on, what was read from it so far, and the limits of the worker and its phases.

    Seconds in which the worker waited for the device or was stopped count in no limit.
    """

    def __init__(
        self, pipe: int, measure: Measure, lease: DeviceLease, tenant: Tenant, on_phase: Callable[[str], None]
    ) -> None:
        self._pipe, self._measure, self._on_phase = pipe, measure, on_phase
        self._lease, self._tenant = lease, tenant
        self._tail = b""
        self._begin_s = self._phase_begin_s = self._now_s()
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
                remaining_s, limit = self._find_limit()
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
                if message.name != self.phase:
                    self.phase, self._phase_begin_s = message.name, self._now_s()
                self._on_phase(message.name)
            elif isinstance(message, LeaseRequest):
                self._lease.request(self._tenant, message.wants)
            else:
                self.outcome = message

    def _find_limit(self) -> tuple[float, str]:
        """Find the nearest limit: the seconds that are left until it, and how the user would type it."""
        now_s, measure = self._now_s(), self._measure
        limits = [(self._begin_s + measure.timeout_s - now_s, f"measure.timeout_s={measure.timeout_s:g}")]
        phase_s = measure.phase_timeouts_s.get(self.phase)
        if phase_s is not None:
            name = f"measure.phase_timeouts_s.{self.phase}={phase_s:g}"
            limits.append((self._phase_begin_s + phase_s - now_s, name))
        return min(limits)

    def _now_s(self) -> float:
        return time.monotonic() - self._lease.idle_s(self._tenant)
