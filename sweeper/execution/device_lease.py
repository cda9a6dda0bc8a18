"""DeviceLease: who may compute on a device, and who rests meanwhile.

Several workers of a device prepare at once. Compiling on the CPU needs no turn; what computes on the device does. A
worker that measures has the device alone: until it lets go, every other worker is stopped (SIGSTOP) with its process
group. Only workers without a turn are ever stopped, so nothing of theirs computes on the device then.

Place in the flow: a slot has the turns of its device; `runner` hands over what its worker asks for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sweeper.core.protocol import ALONE, NOTHING, LeaseGrant
from sweeper.execution.reaper import Reaper


@dataclass(eq=False)
class Member:
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
    """The turns of one device, in the order in which workers ask; who has it already can have it alone at once."""

    def __init__(self, guardian: Reaper | None = None) -> None:
        self._guardian = guardian
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._queue: deque[Member] = deque()
        self._holder: Member | None = None
        self._alone = False

    @contextmanager
    def member(self, group: int, send: Callable[[LeaseGrant], None]) -> Iterator[Member]:
        """A worker as long as it lives; what it holds is free when the body ends, so it has to have ended by then."""
        member = Member(group, send)
        with self._lock:
            if self._guardian:
                self._guardian.watch(group)
            self._members.append(member)
            if self._alone:
                _stop(member)
        try:
            yield member
        finally:
            with self._lock:
                self._members.remove(member)
                if member in self._queue:
                    self._queue.remove(member)
                if self._holder is member:
                    self._free()
                if self._guardian:
                    self._guardian.forget(group)

    def ask(self, member: Member, wants: str) -> None:
        """The worker asks for the device, for the device alone, or for nothing any more; it hears when it has it."""
        with self._lock:
            if self._holder is member and wants == ALONE:
                self._begin(member, wants)
            else:
                if self._holder is member:
                    self._free()
                if wants != NOTHING:
                    member.wants, member.waits_since = wants, time.monotonic()
                    self._queue.append(member)
            self._serve()

    def idle_s(self, member: Member) -> float:
        """Wall seconds that the worker has waited or been stopped so far."""
        with self._lock:
            since = member.stopped_since if member.waits_since is None else member.waits_since
            return member.idle_s + (time.monotonic() - since if since is not None else 0.0)

    def _serve(self) -> None:
        if self._holder is None and self._queue:
            self._begin(next_one := self._queue.popleft(), next_one.wants)

    def _begin(self, member: Member, wants: str) -> None:
        self._holder = member
        if wants == ALONE and not self._alone:
            self._alone = True
            for other in self._members:
                if other is not member:
                    _stop(other)
        if member.waits_since is not None:
            member.idle_s += time.monotonic() - member.waits_since
            member.waits_since = None
        neighbours = [other.group for other in self._members if other is not member and other.was_on_the_device]
        member.was_on_the_device = True
        grant = LeaseGrant(member.stopped_s, tuple(neighbours))
        member.stopped_s = 0.0
        member.send(grant)

    def _free(self) -> None:
        self._holder = None
        if self._alone:
            self._alone = False
            for member in self._members:
                _continue(member)
        self._serve()


def _stop(member: Member) -> None:
    member.stopped_since = time.monotonic()
    _signal(member, signal.SIGSTOP)


def _continue(member: Member) -> None:
    if member.stopped_since is None:
        return
    if member.waits_since is None:  # else it waits, and that is counted as one
        stopped_s = time.monotonic() - member.stopped_since
        member.stopped_s += stopped_s
        member.idle_s += stopped_s
    member.stopped_since = None
    _signal(member, signal.SIGCONT)


def _signal(member: Member, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended; whoever listens to it will see that
        os.killpg(member.group, number)
