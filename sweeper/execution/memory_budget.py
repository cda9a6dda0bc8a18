"""Memory budget: how many trials the memory of a device holds side by side.

Trials hold their parameters and what belongs to them side by side, and a cold process the
activations of a step as well, while its backward pass is compiled. Those that compute need more,
most of all for their check: a step in fp64, and copies to compare. A trial begins where there is
room for one that computes, on a device that is shared for two. More share it only where there is
room for them all (`device_lease`). The first process of a model and batch size shows how much that
is. A sweep that is resumed reads it from its records. A process with unknown needs reserves
nothing. If memory runs out on a shared device, the trial runs again alone on it: only then it is
out of memory.
"""

import math
import sys
import threading
from collections import defaultdict
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
        return max(0.0, self.peak_bytes - self.held_bytes)


WHOLE_DEVICE = Need(0.0, math.inf)  # no other process has memory of the device
NOTHING = Need(0.0, 0.0)


class KnownNeeds:
    """What trials need by model and batch size; for all devices of a sweep."""

    def __init__(self) -> None:
        self._held: defaultdict[Hashable, float] = defaultdict(float)  # bytes, the most seen
        self._peaks: defaultdict[Hashable, float] = defaultdict(float)

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
            self._peaks[key] = max(self._peaks[key], steps_bytes, check_bytes)
            held = key, process.cold
            self._held[held] = max(self._held[held], process.held_bytes or 0.0)

    def look_up(self, trial: Trial, batch_size: int, cold: bool) -> Need | None:
        """The need of a cold process or another one, in whatever precision was measured; None when
        none was.
        """
        key = trial.model.key, trial.workload, batch_size
        held_bytes = self._held[key, cold] or self._held[key, not cold]
        need = Need(held_bytes, max(held_bytes, self._peaks[key]))
        return None if need == NOTHING else need


@dataclass(eq=False)
class Reservation:
    """Memory that is reserved for an attempt of a trial."""

    need: Need
    shared: bool = False  # another attempt had memory of the device at the same time


class MemoryBudget:
    """The memory of one device; `total_bytes` is None where it is not known, and nothing is planned
    then. `is_shared` says whether more than one trial computes on it at once.
    """

    def __init__(self, total_bytes: float | None = None) -> None:
        # Contexts and libraries of each process take a tenth. Without a total: less than the whole
        # device, more than anything else.
        self._total_bytes = 0.9 * (total_bytes or sys.float_info.max)
        self.is_shared = False
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
                reservation.shared |= len(self._granted) > 1
            self._changed.notify_all()
        try:
            yield own
        finally:
            with self._changed:
                self._granted.remove(own)
                self._changed.notify_all()

    def _fits(self, own: Reservation) -> bool:
        if not self._granted:
            return True
        num_computing = 2 if self.is_shared else 1
        return self._room_beside([*self._granted, own], num_computing) >= 0

    def room_for_sharers(self) -> float:
        """Bytes for all that share the device while another trial computes."""
        with self._changed:
            return self._room_beside(self._granted, 1)

    def _room_beside(self, reservations: Sequence[Reservation], num_computing: int) -> float:
        """Bytes that are left beside what trials hold, and what the largest of them need more."""
        needs = [reservation.need for reservation in reservations]
        more_bytes = sorted((need.more_bytes for need in needs), reverse=True)
        in_use = sum(need.held_bytes for need in needs) + sum(more_bytes[:num_computing])
        return self._total_bytes - in_use
