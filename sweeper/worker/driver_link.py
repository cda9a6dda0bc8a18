"""The driver, as a worker sees it: who grants the device, and who says how long one was stopped."""

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable

from sweeper.core.protocol import NOTHING, LeaseGrant, LeaseNews, LeaseRequest

from .lease import Lease


class DriverLink:
    """Reads `pipe`, the other end of which the driver holds; `say` tells the driver something."""

    def __init__(self, pipe: int, say: Callable[[LeaseRequest], None]) -> None:
        self._lines = os.fdopen(pipe, "rb", buffering=0)
        self._say = say
        self._reading = threading.Lock()
        self._grants = queue.SimpleQueue[LeaseGrant]()
        self.lease = Lease(self._ask)
        self.lease.hear = self._hear

    def listen(self) -> None:
        """Read for ever. When the driver dies, however it dies, so do we and all we started."""
        while True:
            select.select([self._lines], [], [])
            self._hear()

    def _hear(self) -> None:
        """Read what is there, without waiting."""
        with self._reading:
            while select.select([self._lines], [], [], 0)[0]:
                line = self._lines.readline()  # written as a whole
                if not line:
                    os.killpg(0, signal.SIGKILL)
                news = LeaseNews.loads(line.decode())
                self.lease.stopped_s = news.stopped_s
                if news.grant:
                    self._grants.put(news.grant)

    def _ask(self, wants: str) -> LeaseGrant:
        self._say(LeaseRequest(wants, time.monotonic()))
        return LeaseGrant() if wants == NOTHING else self._grants.get()
