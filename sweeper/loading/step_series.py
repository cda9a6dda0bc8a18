"""Step times in the order in which they were taken, small enough to keep for every trial of a large sweep.

Place in the flow: `Record -> Series` while a record is read; `steps` draws it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from sweeper.core.record import Process, Record

MAX_PROCESSES = 15  # as many as `measure.target` starts


@dataclass(frozen=True, slots=True)
class ProcessSeries:
    """Seconds a step of one process; an array of doubles takes a quarter of a tuple of floats."""

    index: int
    cold: bool
    first_s: array[float]  # the first compiled steps, one by one
    eager_s: array[float]  # a block each, in order
    compiled_s: array[float]
    void: int = 0  # rounds that do not count and are left out

    @property
    def positive(self) -> bool:
        """Whether there is a time that a logarithmic axis takes."""
        return any(value > 0 for values in (self.first_s, self.eager_s, self.compiled_s) for value in values)


def series_of(record: Record) -> tuple[ProcessSeries, ...]:
    """Of the processes that got as far as a compiled step; a trial that is not ok has none, as it has no speed."""
    if record.status != "ok":
        return ()
    found = (_of_process(process) for process in record.processes[:MAX_PROCESSES])
    return tuple(series for series in found if series.first_s or series.compiled_s)


def _of_process(process: Process) -> ProcessSeries:
    steps = process.steps_per_block
    return ProcessSeries(
        process.index,
        process.cold,
        array("d", process.first_steps_s),
        _a_step(process.blocks_s("eager"), steps),
        _a_step(process.blocks_s("compiled"), steps),
        sum(item.void is not None for item in process.rounds),
    )


def _a_step(blocks_s: Iterable[float], steps: int | None) -> array[float]:
    return array("d", (block_s / steps for block_s in blocks_s) if steps else ())
