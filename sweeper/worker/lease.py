"""The worker's side of the device lease: when it may compute on the device, and a clock that leaves
out the waiting.

The device is held for itself while the model is built and runs its first eager steps, let go while
the compiler runs on the CPU, shared in the first compiled steps and in the check, and held alone
from the warm-up to the last reading. Without a driver it is always ours. Nothing here needs torch.
"""

import threading
from collections.abc import Callable
from time import monotonic, perf_counter  # before a model can put others in their place

from sweeper.core.protocol import DEVICE, NOTHING, RESUME, SHARED, SHARES, SOLE, Known, LeaseGrant

# tells the driver what is wanted, and waits for it unless that is nothing
Ask = Callable[[str], LeaseGrant]


class Lease:
    """Who computes on the device; `before_leaving` and `after_returning` are called around every
    time without it.
    """

    def __init__(self, ask: Ask = lambda _wants: LeaseGrant()) -> None:
        self._ask = ask
        self.lock = threading.RLock()  # compilers and their timers have threads of their own
        self.holds = NOTHING
        self.may_share = False  # else it has the device for itself whenever it would share it
        self._waited_s = 0.0
        self.stopped_s = 0.0  # as the driver said last
        self.hear: Callable[[], None] = lambda: None  # what it has said since
        self.held_bytes: float | None = None  # of its memory, the most while others had it
        # process groups of other workers that are on the device
        self.neighbours: frozenset[int] = frozenset()
        self.known = Known()
        self.before_leaving: Callable[[], None] = lambda: None
        self.after_returning: Callable[[], None] = lambda: None
        # waits until the device has done the work of processes that were stopped; nothing is timed
        # before it is set
        self.await_idle: Callable[[], None] = lambda: None

    @property
    def may_have_neighbours(self) -> bool:
        """Whether other workers have memory on the device, or may get some meanwhile."""
        return bool(self.neighbours) or self.holds == SHARED

    @property
    def shares(self) -> bool:
        """Whether the device is held beside others, or may be."""
        return self.holds in SHARES

    @property
    def away_s(self) -> float:
        """Seconds for which it waited for the device or was stopped."""
        return self._waited_s + self.stopped_s

    def clock(self) -> float:
        """Seconds like `time.perf_counter`, standing still while this process waits or is
        stopped.
        """
        while True:
            away_s, now_s = self.away_s, perf_counter()
            if self.shares:  # else it hears of stops with what it is granted next
                self.hear()
            if self.away_s == away_s:  # else it was stopped, before the clock was read or after
                return now_s - away_s

    def take(self, wants: str = DEVICE) -> None:
        """Wait for what is wanted of the device, and let go of what is held before; whoever shares
        it keeps its place for a benchmark.
        """
        if wants == SHARED and not self.may_share:
            wants = DEVICE
        with self.lock:
            if self.holds == wants:
                return
            keeps_place = RESUME in (self.holds, wants) and (self.shares or wants in SHARES)
            if not keeps_place:
                self.leave()
            was_away = self.holds == NOTHING
            self.holds = DEVICE if was_away and wants == RESUME else wants
            asked_s = monotonic()
            grant = self._ask(wants)
            if grant.granted_s is not None:
                self._waited_s += grant.granted_s - asked_s
            if grant.has_stopped_sharers:
                begin_s = monotonic()
                self.await_idle()
                self._waited_s += monotonic() - begin_s
            self.neighbours, self.known = frozenset(grant.neighbours), grant.known
            if was_away:
                self.after_returning()

    def take_sole_share(self) -> bool:
        """Wait until nobody else shares the device; whether others may have shared it before."""
        if self.holds != SHARED:
            return False
        before = self.neighbours
        self.take(SOLE)
        return bool(before | self.neighbours)

    def leave(self) -> None:
        """Let go of the device, on which nothing of ours runs any more."""
        with self.lock:
            if self.holds == NOTHING:
                return
            self.before_leaving()
            self.holds = NOTHING
            self._ask(NOTHING)
