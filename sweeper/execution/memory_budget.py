"""MemoryBudget on a device: how many trials its memory holds side by side.

What a trial needs at most is known from the first one of its model and batch size. One of which nothing is known is
let in, and where memory runs out beside others the trial runs once more with the device to itself: only then it is out
of memory. Place in the flow: `runner` has every attempt of a trial stay in the room of its slot.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.core.record import Record
from sweeper.core.trial import Trial

EVERYTHING = math.inf  # bytes: the device to itself
USABLE = 0.9  # of the device's memory; contexts and libraries of each process take the rest
POLL_S = 0.5


class Peaks:
    """Most bytes of device memory that eager steps needed, by model and batch size; one for all devices of a sweep."""

    def __init__(self) -> None:
        self._peaks: dict[Hashable, float] = {}

    def learn(self, record: Record) -> None:
        key = self._key(record.trial, record.batch_size)
        for process in record.processes:
            peak = process.allocator_peak_bytes.eager if process.allocator_peak_bytes else None
            if peak:
                self._peaks[key] = max(peak, self._peaks.get(key, 0.0))

    def of(self, trial: Trial, batch_size: int) -> float | None:
        """Bytes, of whatever precision was seen; None when none was."""
        return self._peaks.get(self._key(trial, batch_size))

    @staticmethod
    def _key(trial: Trial, batch_size: int) -> Hashable:
        return trial.model.key, trial.workload, batch_size


@dataclass(eq=False)
class Reservation:
    """An attempt of a trial in the room."""

    needed_bytes: float
    had_company: bool = False


class MemoryBudget:
    """The memory of one device; `total_bytes` is None where it is not known, and nothing is planned then."""

    def __init__(self, total_bytes: float | None = None) -> None:
        self._total = math.inf if total_bytes is None else USABLE * total_bytes
        self._changed = threading.Condition()
        self._waiting: list[Reservation] = []
        self._inside: list[Reservation] = []

    @contextmanager
    def stay(self, needed_bytes: float | None, stop: threading.Event) -> Iterator[Reservation]:
        """Wait until there is room, at most until `stop` is set. Who came first is let in first."""
        own = Reservation(needed_bytes or 0.0)
        with self._changed:
            self._waiting.append(own)
            while not stop.is_set() and not (self._waiting[0] is own and self._fits(own)):
                self._changed.wait(POLL_S)
            self._waiting.remove(own)
            self._inside.append(own)
            if len(self._inside) > 1:
                for other in self._inside:
                    other.had_company = True
            self._changed.notify_all()
        try:
            yield own
        finally:
            with self._changed:
                self._inside.remove(own)
                self._changed.notify_all()

    def _fits(self, own: Reservation) -> bool:
        if any(other.needed_bytes == EVERYTHING for other in self._inside):
            return False
        return not self._inside or own.needed_bytes + sum(other.needed_bytes for other in self._inside) <= self._total
