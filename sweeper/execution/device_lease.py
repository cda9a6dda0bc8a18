"""Device lease: which workers may compute on a device, and which are stopped meanwhile.

Several workers of a device prepare at once. Compiling on the CPU needs no lease; computing on the
device does. What is timed there has the device for itself: a worker that measures has every other
worker stopped (SIGSTOP) with its process group, and whoever builds a model or benchmarks a kernel
has those stopped that share the device. What is not timed shares it: the first run of a compiled
step and its check are work of the CPU for most of their time. Waiting for the device and being
stopped count in no limit of time; the limits are in `worker_channel`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sweeper.core.protocol import ALONE, NOTHING, RESUME, SHARES, SOLE, Known, LeaseGrant, LeaseNews

from .memory_budget import MemoryBudget, Reservation
from .reaper import Reaper


@dataclass(eq=False)
class Tenant:
    """A worker of the device. Times are of `time.monotonic`, in seconds."""

    group: int  # the number of its process group, which is that of the worker itself
    send: Callable[[LeaseNews], bool]  # must not block; False: the worker does not read
    index: int = 0  # of the process in its trial
    known: Known = field(default_factory=Known)  # to be told with each grant
    reservation: Reservation = field(default_factory=Reservation)  # of the device's memory
    wants: str = NOTHING
    has_used_device: bool = False
    is_deaf: bool = False  # a grant could not be sent; whoever reads its channel ends it
    waits_since: float | None = None
    stopped_since: float | None = None
    # begin and end of each time while it did not wait
    stops: list[tuple[float, float]] = field(default_factory=list)
    idle_s: float = 0.0  # waited or stopped, all in all

    @property
    def shares(self) -> bool:
        """Whether it has a place among those that share the device, also while it benchmarks."""
        return self.reservation.shares

    @property
    def stopped_s(self) -> float:
        return sum(end - begin for begin, end in self.stops)


class DeviceLease:
    """Grants one device: to at most `max_sharers` workers that share it, for whose memory there is
    room, or to one for itself.

    Whoever wants it for itself comes first, and stops those that share it. First of all come those
    that resume: a worker that autotunes asks hundreds of times for milliseconds. Then come later
    processes of a trial, since its answer is near; otherwise the order of requests holds. Whoever
    wants the sole share waits until the others have let go of theirs.
    """

    def __init__(
        self,
        reaper: Reaper | None = None,
        max_sharers: int = 1,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._reaper = reaper
        self._max_sharers = max_sharers
        self._memory = memory or MemoryBudget()
        self._lock = threading.Lock()
        self._tenants: list[Tenant] = []
        self._queue: list[Tenant] = []
        self._holder: Tenant | None = None  # has it for itself

    @contextmanager
    def register(
        self, group: int, send: Callable[[LeaseNews], bool], index: int = 0
    ) -> Iterator[Tenant]:
        """Register a worker, process `index` of its trial, as long as the body runs; the device
        goes to the next worker afterwards.

        The body has to end the worker.
        """
        tenant = Tenant(group, send, index)
        with self._lock:
            if self._reaper:
                self._reaper.watch(group)
            self._tenants.append(tenant)
            self._settle()
        try:
            yield tenant
        finally:
            with self._lock:
                self._tenants.remove(tenant)
                if tenant in self._queue:
                    self._queue.remove(tenant)
                if tenant.shares:
                    self._memory.end_sharing(tenant.reservation)
                if self._holder is tenant:
                    self._holder = None
                self._settle()
                if self._reaper:
                    self._reaper.forget(group)

    def request(self, tenant: Tenant, wants: str, asked_s: float | None = None) -> None:
        """Queue a worker for what it wants, or release the device; `send` is called when it has
        that. A worker that was started ahead has asked before this is called.
        """
        with self._lock:
            tenant.wants = wants
            if self._holder is tenant:
                self._holder = None
            if wants != NOTHING:
                tenant.waits_since = tenant.stopped_since or time.monotonic()
                if asked_s is not None:  # since then it knows itself how long it waits
                    tenant.stops = [(a, min(b, asked_s)) for a, b in tenant.stops if a < asked_s]
                self._queue.append(tenant)
            elif tenant.shares:
                self._memory.end_sharing(tenant.reservation)
            self._settle()

    def settle(self) -> None:
        """Let in who waits for memory, when some was given back."""
        with self._lock:
            self._settle()

    def idle_s(self, tenant: Tenant) -> float:
        """Wall seconds that a worker has waited or been stopped so far."""
        with self._lock:
            now = time.monotonic()
            since = tenant.waits_since or tenant.stopped_since or now
            return tenant.idle_s + now - since

    def _settle(self) -> None:
        """Let those have the device that can, stop and continue whom that concerns, and tell
        them.
        """
        granted = []
        while self._holder is None and self._queue:
            first = max(self._queue, key=self._rank)
            if first.wants not in SHARES:
                self._holder = first
            elif not (first.shares or self._may_share(first)):
                break
            self._queue.remove(first)
            granted.append(first)
        for tenant in self._tenants:
            must_stop = self._must_stop(tenant)
            if must_stop and tenant.stopped_since is None:
                _stop(tenant)
            elif not must_stop and tenant.stopped_since is not None:
                self._go_on(tenant, tenant.stopped_since)
        for tenant in granted:
            self._grant(tenant)

    def _may_share(self, tenant: Tenant) -> bool:
        """Whether one more may share the device; its memory is then taken."""
        sharers = [one for one in self._tenants if one.shares]
        is_full = len(sharers) >= self._max_sharers
        if sharers and (is_full or any(one.wants == SOLE for one in [tenant, *sharers])):
            return False
        return self._memory.share(tenant.reservation)

    def _rank(self, tenant: Tenant) -> tuple[bool, bool, bool, bool, int]:
        """A key by which the last goes first."""
        wants = tenant.wants
        return wants == RESUME, wants not in SHARES, tenant.shares, wants == SOLE, tenant.index

    def _must_stop(self, tenant: Tenant) -> bool:
        holder = self._holder
        if holder is None or holder is tenant:
            return False
        return holder.wants == ALONE or tenant.shares

    def _go_on(self, tenant: Tenant, stopped_since: float) -> None:
        """Continue a worker that was stopped; of one that waits, these seconds count as waiting."""
        now = time.monotonic()
        if tenant.waits_since is None:
            tenant.stops.append((stopped_since, now))
            tenant.idle_s += now - stopped_since
            if tenant.shares:  # its clock runs; others hear it with their grant
                tenant.send(LeaseNews(tenant.stopped_s))
        tenant.stopped_since = None
        _signal(tenant, signal.SIGCONT)

    def _grant(self, tenant: Tenant) -> None:
        now = time.monotonic()
        if tenant.waits_since is not None:
            tenant.idle_s += now - tenant.waits_since
            tenant.waits_since = None
        tenant.has_used_device = True
        others = [other for other in self._tenants if other is not tenant]
        grant = LeaseGrant(
            granted_s=now,
            neighbours=tuple(other.group for other in others if other.has_used_device),
            known=tenant.known,
            has_stopped_sharers=self._holder is tenant and any(other.shares for other in others),
        )
        if not tenant.send(LeaseNews(tenant.stopped_s, grant)):
            tenant.is_deaf = True


def _stop(tenant: Tenant) -> None:
    tenant.stopped_since = time.monotonic()
    _signal(tenant, signal.SIGSTOP)


def _signal(tenant: Tenant, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended; whoever reads its channel will see that
        os.killpg(tenant.group, number)
