"""Memory budget: how many trials the memory of a device holds side by side.

The first trial of a model and batch size shows how much memory the others need; a trial with
unknown needs reserves nothing. If memory runs out on a shared device, the trial runs again alone on
it: only then it is out of memory."""

import math
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.core.record import Record
from sweeper.core.trial import Trial

WHOLE_DEVICE = math.inf  # bytes: no other process has memory of the device


class PeakMemory:
    """Bytes of device memory that eager steps needed at most, by model and batch size; for all
    devices of a sweep.
    """

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
    def reserve(self, needed_bytes: float | None, stop: threading.Event) -> Iterator[Reservation]:
        """Reserve memory as long as the body runs; wait in the order of requests, at most until
        `stop` is set.
        """
        own = Reservation(needed_bytes or 0.0)
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
        granted_bytes = sum(reservation.needed_bytes for reservation in self._granted)
        return not self._granted or own.needed_bytes + granted_bytes <= self._total_bytes
