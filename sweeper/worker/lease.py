"""The worker's side of the device lease: when it may compute on the device, and a clock that leaves
out the waiting.

The device is held from building on, let go while the compiler runs on the CPU, and held alone from
the warm-up to the last reading. Without a driver it is always ours. Nothing here needs torch.
"""

import threading
from collections.abc import Callable
from time import perf_counter  # before a model can put another one in its place

from sweeper.core.protocol import DEVICE, NOTHING, RESUME, Known, LeaseGrant

# tells the driver what is wanted, and waits for the device unless that is nothing
Ask = Callable[[str], LeaseGrant]


class Lease:
    """Who computes on the device; `before_leaving` and `after_returning` are called around every
    time without it.
    """

    def __init__(self, ask: Ask = lambda _wants: LeaseGrant()) -> None:
        self._ask = ask
        self.lock = threading.RLock()  # compilers and their timers have threads of their own
        self.holds = NOTHING
        self.away_s = 0.0  # waited for the device, or stopped
        self.held_bytes: float | None = None  # of its memory, the most while others had it
        # process groups of other workers that are on the device
        self.neighbours: frozenset[int] = frozenset()
        self.known = Known()
        self.before_leaving: Callable[[], None] = lambda: None
        self.after_returning: Callable[[], None] = lambda: None

    def clock(self) -> float:
        """Seconds like `time.perf_counter`, standing still while this process waits or is
        stopped.
        """
        return perf_counter() - self.away_s

    def take(self, wants: str = DEVICE) -> None:
        """Wait for the device, or for the device alone; one that resumes waits less."""
        with self.lock:
            held, self.holds = self.holds, DEVICE if wants == RESUME else wants
            if held == self.holds:
                return
            begin = perf_counter()
            grant = self._ask(wants)
            self.away_s += perf_counter() - begin + grant.stopped_s
            self.neighbours, self.known = frozenset(grant.neighbours), grant.known
            if held == NOTHING:
                self.after_returning()

    def leave(self) -> None:
        """Let go of the device, on which nothing of ours runs any more."""
        with self.lock:
            if self.holds == NOTHING:
                return
            self.before_leaving()
            self.holds = NOTHING
            self._ask(NOTHING)
