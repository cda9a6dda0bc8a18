"""Memory budget: how many trials the memory of a device holds side by side.

Trials hold their parameters and what belongs to them side by side, and a cold process the
activations of a step as well, while its backward pass is compiled. Those that compute need more,
most of all for their check: a step in fp64, and copies to compare. At all times there is room for
two that compute, and for all that share the device (`device_lease`) beside another one. The first
process of a model and batch size shows how much that is, in whatever precision, mode and backend. A
sweep that is resumed reads it from its records. A process with unknown needs reserves nothing. If
memory runs out on a shared device, the trial runs again alone on it: only then it is out of memory.
"""

import math
import sys
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sweeper.core.record import Record, RecordError, of_arm
from sweeper.core.trial import Trial


class Need(NamedTuple):
    """Bytes of device memory that a trial needs."""

    held_bytes: float  # without the device
    peak_bytes: float  # while it computes: in a step, or in the check

    @property
    def more_bytes(self) -> float:
        """What it needs to compute, beside what it holds."""
        return self.peak_bytes - self.held_bytes


WHOLE_DEVICE = Need(0.0, math.inf)  # no other process has memory of the device
NOTHING = Need(0.0, 0.0)


class KnownNeeds:
    """What trials need by model and batch size; for all devices of a sweep."""

    def __init__(self) -> None:
        # bytes, the most seen; of cold processes and of others
        self._held: dict[bool, dict[Hashable, float]] = {True: {}, False: {}}
        self._peaks: dict[Hashable, float] = {}

    def read(self, records: Iterable[Path]) -> None:
        """Learn from records on disk; one that cannot be read says nothing."""
        for path in records:
            with suppress(RecordError):
                self.learn(Record.read(path))

    def learn(self, record: Record) -> None:
        trial = record.trial
        key = trial.model.key, trial.workload, record.batch_size
        for process in record.processes:
            steps_bytes = of_arm(process.allocator_peak_bytes, "eager") or 0.0
            check_bytes = process.check_peak_bytes or 0.0
            self._peaks[key] = max(self._peaks.get(key, 0.0), steps_bytes, check_bytes)
            held = self._held[process.cold]
            held[key] = max(held.get(key, 0.0), process.held_bytes or 0.0)

    def look_up(self, trial: Trial, batch_size: int, cold: bool) -> Need | None:
        """The need of a cold process or another one, in whatever precision was measured; None when
        none was.
        """
        key = trial.model.key, trial.workload, batch_size
        held_bytes = self._held[cold].get(key) or self._held[not cold].get(key, 0.0)
        need = Need(held_bytes, max(held_bytes, self._peaks.get(key, 0.0)))
        return None if need == NOTHING else need


@dataclass(eq=False)
class Reservation:
    """Memory that is reserved for an attempt of a trial."""

    need: Need = NOTHING
    had_company: bool = False  # another attempt had memory of the device at the same time
    shares: bool = False  # computes beside others


class MemoryBudget:
    """The memory of one device; `total_bytes` is None where it is not known, and nothing is planned
    then.
    """

    def __init__(self, total_bytes: float | None = None) -> None:
        # Contexts and libraries of each process take a tenth. Without a total: less than the whole
        # device, more than anything else.
        self._total_bytes = 0.9 * (total_bytes or sys.float_info.max)
        self._changed = threading.Condition()
        self._waiting: list[Reservation] = []
        self._granted: list[Reservation] = []

    @contextmanager
    def reserve(self, need: Need | None, stop: threading.Event) -> Iterator[Reservation]:
        """Reserve memory as long as the body runs; wait in the order of requests, at most until
        `stop` is set.
        """
        own = Reservation(need or NOTHING)
        with self._changed:
            self._waiting.append(own)
            while not stop.is_set() and not (self._waiting[0] is own and self._fits(own)):
                self._changed.wait(0.5)
            self._waiting.remove(own)
            self._granted.append(own)
            for reservation in self._granted:
                reservation.had_company |= len(self._granted) > 1
            self._changed.notify_all()
        try:
            yield own
        finally:
            with self._changed:
                self._granted.remove(own)
                self._changed.notify_all()

    def share(self, own: Reservation) -> bool:
        """Let a trial compute beside others, if it is the first or has room; whether it may."""
        with self._changed:
            sharers = self._list_sharers()
            if sharers and not self._has_room(self._granted, [*sharers, own]):
                return False
            own.shares = True
            return True

    def end_sharing(self, own: Reservation) -> None:
        """A trial has let go of what it needed to compute."""
        with self._changed:
            own.shares = False
            self._changed.notify_all()

    def _fits(self, own: Reservation) -> bool:
        """Whether a trial may have memory beside those that have some."""
        if not self._granted:
            return True
        reservations = [*self._granted, own]
        largest = max(reservations, key=lambda one: one.need.more_bytes)
        return self._has_room(reservations, [largest]) and self._has_room(
            reservations, self._list_sharers()
        )

    def _list_sharers(self) -> list[Reservation]:
        return [one for one in self._granted if one.shares]

    def _has_room(
        self, reservations: Sequence[Reservation], computing: Sequence[Reservation]
    ) -> bool:
        """Whether all hold what they do, and these compute beside any other one."""
        others = [one.need.more_bytes for one in reservations if one not in computing]
        held_bytes = sum(one.need.held_bytes for one in reservations)
        more_bytes = sum(one.need.more_bytes for one in computing) + max(others, default=0.0)
        return held_bytes + more_bytes <= self._total_bytes
