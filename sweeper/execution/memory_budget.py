"""Memory budget: how many trials the memory of a device holds side by side.

Trials hold their parameters and what belongs to them side by side. Those that compute need more,
most of all for their check: a step in fp64, and copies to compare. The first process of a model
and batch size shows how much that is. A sweep that is resumed reads it from its records. A process
with unknown needs reserves nothing. If memory runs out on a shared device, the trial runs again
alone on it: only then it is out of memory.
"""

import math
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
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


WHOLE_DEVICE = Need(0.0, math.inf)  # no other process has memory of the device
NOTHING = Need(0.0, 0.0)


class KnownNeeds:
    """What trials need by model and batch size; for all devices of a sweep."""

    def __init__(self) -> None:
        self._needs: dict[Hashable, Need] = {}

    def read(self, records: Iterable[Path]) -> None:
        """Learn from records on disk; one that cannot be read says nothing."""
        for path in records:
            with suppress(RecordError):
                self.learn(Record.read(path))

    def learn(self, record: Record) -> None:
        trial = record.trial
        held_bytes = peak_bytes = 0.0
        for process in record.processes:
            held_bytes = max(held_bytes, process.held_bytes or 0.0)
            steps_bytes = of_arm(process.allocator_peak_bytes, "eager") or 0.0
            peak_bytes = max(peak_bytes, steps_bytes, process.check_peak_bytes or 0.0)
        key = trial.model.key, trial.workload, record.batch_size
        known = self._needs.get(key, NOTHING)
        need = Need(max(held_bytes, known.held_bytes), max(peak_bytes, known.peak_bytes))
        if need != NOTHING:
            self._needs[key] = need

    def look_up(self, trial: Trial, batch_size: int) -> Need | None:
        """The need in whatever precision was measured; None when none was."""
        return self._needs.get((trial.model.key, trial.workload, batch_size))


@dataclass(eq=False)
class Reservation:
    """Memory that is reserved for an attempt of a trial."""

    need: Need
    shared: bool = False  # another attempt had memory of the device at the same time


class MemoryBudget:
    """The memory of one device; `total_bytes` is None where it is not known, and nothing is planned
    then. `count_computing` says how many trials compute on it at once.
    """

    def __init__(
        self, total_bytes: float | None = None, count_computing: Callable[[], int] = lambda: 1
    ) -> None:
        # Contexts and libraries of each process take a tenth. Without a total: less than the whole
        # device, more than anything else.
        self._total_bytes = 0.9 * (total_bytes or sys.float_info.max)
        self._count_computing = count_computing
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
        needs = [reservation.need for reservation in (own, *self._granted)]
        held_bytes = sum(need.held_bytes for need in needs)
        more_bytes = sorted((need.peak_bytes - need.held_bytes for need in needs), reverse=True)
        return held_bytes + sum(more_bytes[: self._count_computing()]) <= self._total_bytes
