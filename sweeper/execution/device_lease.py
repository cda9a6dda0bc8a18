"""Device lease: which worker may compute on a device, and which workers are stopped meanwhile.

Several workers of a device prepare at once. Compiling on the CPU needs no lease; computing on the
device does. A worker that measures has the device alone: until it is done, every other worker is
stopped (SIGSTOP) with its process group. Only workers without a lease are stopped, and a worker
without a lease has no work on the device. Waiting for the device counts in no limit of time; the
limits are in `worker_channel`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sweeper.core.protocol import ALONE, NOTHING, RESUME, Known, LeaseGrant

from .reaper import Reaper


@dataclass(eq=False)
class Tenant:
    """A worker of the device. Times are of `time.monotonic`, in seconds."""

    group: int  # the number of its process group, which is that of the worker itself
    send: Callable[[LeaseGrant], bool]  # must not block; False: the worker does not read
    index: int = 0  # of the process in its trial
    known: Known = field(default_factory=Known)  # to be told with each grant
    wants: str = NOTHING
    has_used_device: bool = False
    is_deaf: bool = False  # a grant could not be sent; whoever reads its channel ends it
    waits_since: float | None = None
    stopped_since: float | None = None
    # begin and end of each time since it last let go of the device, while it did not wait
    stops: list[tuple[float, float]] = field(default_factory=list)
    idle_s: float = 0.0  # waited or stopped, all in all

    @property
    def stopped_s(self) -> float:
        return sum(end - begin for begin, end in self.stops)


class DeviceLease:
    """Grants one device to workers; the holder can have it alone at once.

    Every second turn belongs to those that resume: a worker that autotunes asks hundreds of times
    for milliseconds. Then come later processes of a trial, since its answer is near; otherwise the
    order of requests holds.
    """

    def __init__(self, reaper: Reaper | None = None) -> None:
        self._reaper = reaper
        self._lock = threading.Lock()
        self._tenants: list[Tenant] = []
        self._queue: list[Tenant] = []
        self._holder: Tenant | None = None
        self._has_resumed = False  # the last one that was granted the device

    @contextmanager
    def register(
        self, group: int, send: Callable[[LeaseGrant], bool], index: int = 0
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
            if self._holder and self._holder.wants == ALONE:
                _stop(tenant)
        try:
            yield tenant
        finally:
            with self._lock:
                self._tenants.remove(tenant)
                if tenant in self._queue:
                    self._queue.remove(tenant)
                if self._holder is tenant:
                    self._release()
                if self._reaper:
                    self._reaper.forget(group)

    def request(self, tenant: Tenant, wants: str, asked_s: float | None = None) -> None:
        """Queue a worker for the device or the device alone, or release it; `send` is called when
        it has the lease. A worker that was started ahead has asked before this is called.
        """
        with self._lock:
            tenant.wants = wants
            if self._holder is tenant:
                if wants == ALONE:
                    self._grant(tenant)
                    return
                self._release()
            if wants != NOTHING:
                tenant.waits_since = time.monotonic()
                if asked_s is not None:  # since then it knows itself how long it waits
                    tenant.stops = [(a, min(b, asked_s)) for a, b in tenant.stops if a < asked_s]
                self._queue.append(tenant)
            self._grant_next()

    def idle_s(self, tenant: Tenant) -> float:
        """Wall seconds that a worker has waited or been stopped so far."""
        with self._lock:
            now = time.monotonic()
            since = tenant.waits_since or tenant.stopped_since or now
            return tenant.idle_s + now - since

    def _grant_next(self) -> None:
        if self._holder is None and self._queue:
            goes_on = not self._has_resumed
            first = max(self._queue, key=lambda one: (goes_on and one.wants == RESUME, one.index))
            self._queue.remove(first)
            self._has_resumed = first.wants == RESUME
            self._grant(first)

    def _grant(self, tenant: Tenant) -> None:
        self._holder = tenant
        others = [other for other in self._tenants if other is not tenant]
        if tenant.wants == ALONE:
            for other in others:
                if other.stopped_since is None:
                    _stop(other)
        if tenant.waits_since is not None:
            tenant.idle_s += time.monotonic() - tenant.waits_since
            tenant.waits_since = None
        tenant.has_used_device = True
        neighbours = tuple(other.group for other in others if other.has_used_device)
        grant = LeaseGrant(tenant.stopped_s, neighbours, tenant.known)
        tenant.stops = []
        if not tenant.send(grant):
            tenant.is_deaf = True

    def _release(self) -> None:
        self._holder, now = None, time.monotonic()
        for tenant in self._tenants:
            if tenant.stopped_since is None:
                continue
            if tenant.waits_since is None:  # else these seconds count as waiting
                tenant.stops.append((tenant.stopped_since, now))
                tenant.idle_s += now - tenant.stopped_since
            tenant.stopped_since = None
            _signal(tenant, signal.SIGCONT)
        self._grant_next()


def _stop(tenant: Tenant) -> None:
    tenant.stopped_since = time.monotonic()
    _signal(tenant, signal.SIGSTOP)


def _signal(tenant: Tenant, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended; whoever reads its channel will see that
        os.killpg(tenant.group, number)
