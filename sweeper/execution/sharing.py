"""What the trials of a device share: the device itself, which they lease, and its memory, which they reserve.

Several workers of a device prepare at once. Compiling on the CPU needs no lease; what computes on the device does. A
worker that measures has the device alone: until it lets go, every other worker is stopped (SIGSTOP) with its process
group. Only workers without a lease are ever stopped, so none of them computes on the device then.

The memory budget says how many trials the memory of the device holds side by side. What a trial needs at most is known
from the first one of its model and batch size. A trial of which nothing is known is let in. Where memory runs out
beside others, the trial runs once more with the device to itself: only then it is out of memory.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sweeper.core.protocol import ALONE, NOTHING, LeaseGrant
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.execution.reaper import Reaper

WHOLE_DEVICE = math.inf  # bytes: nobody else has memory of the device
USABLE_SHARE = 0.9  # of the device's memory; contexts and libraries of each process take the rest
POLL_S = 0.5


@dataclass(eq=False)
class Tenant:
    """A worker of the device. Times are of `time.monotonic`, in seconds."""

    group: int  # the number of its process group, which is that of the worker itself
    send: Callable[[LeaseGrant], None]
    wants: str = NOTHING
    was_on_the_device: bool = False
    waits_since: float | None = None
    stopped_since: float | None = None
    stopped_s: float = 0.0  # since it last let go of the device, while it did not wait
    idle_s: float = 0.0  # waited or stopped, all in all


class DeviceLease:
    """Grants one device to workers in the order of their requests; the holder can have it alone at once."""

    def __init__(self, reaper: Reaper | None = None) -> None:
        self._reaper = reaper
        self._lock = threading.Lock()
        self._tenants: list[Tenant] = []
        self._queue: deque[Tenant] = deque()
        self._holder: Tenant | None = None
        self._alone = False

    @contextmanager
    def register(self, group: int, send: Callable[[LeaseGrant], None]) -> Iterator[Tenant]:
        """Register a worker as long as the body runs; the device goes to the next worker afterwards.

        The body has to end the worker.
        """
        tenant = Tenant(group, send)
        with self._lock:
            if self._reaper:
                self._reaper.watch(group)
            self._tenants.append(tenant)
            if self._alone:
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

    def request(self, tenant: Tenant, wants: str) -> None:
        """Queue a worker for the device or the device alone, or release it; `send` is called when it has the lease."""
        with self._lock:
            tenant.wants = wants
            if self._holder is tenant and wants == ALONE:
                self._grant(tenant)
                return
            if self._holder is tenant:
                self._release()
            if wants != NOTHING:
                tenant.waits_since = time.monotonic()
                self._queue.append(tenant)
            self._grant_next()

    def idle_s(self, tenant: Tenant) -> float:
        """Wall seconds that a worker has waited or been stopped so far."""
        with self._lock:
            since = tenant.stopped_since if tenant.waits_since is None else tenant.waits_since
            return tenant.idle_s + (time.monotonic() - since if since is not None else 0.0)

    def _grant_next(self) -> None:
        if self._holder is None and self._queue:
            self._grant(self._queue.popleft())

    def _grant(self, tenant: Tenant) -> None:
        self._holder = tenant
        others = [other for other in self._tenants if other is not tenant]
        if tenant.wants == ALONE and not self._alone:
            self._alone = True
            for other in others:
                _stop(other)
        if tenant.waits_since is not None:
            tenant.idle_s += time.monotonic() - tenant.waits_since
            tenant.waits_since = None
        tenant.was_on_the_device = True
        grant = LeaseGrant(tenant.stopped_s, tuple(other.group for other in others if other.was_on_the_device))
        tenant.stopped_s = 0.0
        tenant.send(grant)

    def _release(self) -> None:
        self._holder = None
        if self._alone:
            self._alone = False
            for tenant in self._tenants:
                _continue(tenant)
        self._grant_next()


def _stop(tenant: Tenant) -> None:
    tenant.stopped_since = time.monotonic()
    _signal(tenant, signal.SIGSTOP)


def _continue(tenant: Tenant) -> None:
    if tenant.stopped_since is None:
        return
    if tenant.waits_since is None:  # else these seconds count as waiting
        stopped_s = time.monotonic() - tenant.stopped_since
        tenant.stopped_s += stopped_s
        tenant.idle_s += stopped_s
    tenant.stopped_since = None
    _signal(tenant, signal.SIGCONT)


def _signal(tenant: Tenant, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended; whoever reads its channel will see that
        os.killpg(tenant.group, number)


class PeakMemory:
    """Bytes of device memory that eager steps needed at most, by model and batch size; for all devices of a sweep."""

    def __init__(self) -> None:
        self._peaks: dict[Hashable, float] = {}

    def learn(self, record: Record) -> None:
        key = record.trial.model.key, record.trial.workload, record.batch_size
        for process in record.processes:
            if (peaks := process.allocator_peak_bytes) and peaks.eager:
                self._peaks[key] = max(peaks.eager, self._peaks.get(key, 0.0))

    def look_up(self, trial: Trial, batch_size: int) -> float | None:
        """Bytes, of whatever precision was measured; None when none was."""
        return self._peaks.get((trial.model.key, trial.workload, batch_size))


@dataclass(eq=False)
class Reservation:
    """Memory that is reserved for an attempt of a trial."""

    needed_bytes: float
    shared: bool = False  # another attempt had memory of the device at the same time


class MemoryBudget:
    """The memory of one device; `total_bytes` is None where it is not known, and nothing is planned then."""

    def __init__(self, total_bytes: float | None = None) -> None:
        self._total_bytes = math.inf if total_bytes is None else USABLE_SHARE * total_bytes
        self._changed = threading.Condition()
        self._waiting: list[Reservation] = []
        self._granted: list[Reservation] = []

    @contextmanager
    def reserve(self, needed_bytes: float | None, stop: threading.Event) -> Iterator[Reservation]:
        """Reserve memory as long as the body runs; wait in the order of requests, at most until `stop` is set."""
        own = Reservation(needed_bytes or 0.0)
        with self._changed:
            self._waiting.append(own)
            while not stop.is_set() and not (self._waiting[0] is own and self._fits(own)):
                self._changed.wait(POLL_S)
            self._waiting.remove(own)
            self._granted.append(own)
            for reservation in self._granted:
                reservation.shared |= len(self._granted) > 1
            self._changed.notify_all()
        try:
            yield own
        finally:
            with self._changed:
                self._granted.remove(own)
                self._changed.notify_all()

    def _fits(self, own: Reservation) -> bool:
        granted_bytes = sum(reservation.needed_bytes for reservation in self._granted)
        fits = not self._granted or own.needed_bytes + granted_bytes <= self._total_bytes
        return fits and granted_bytes < WHOLE_DEVICE
