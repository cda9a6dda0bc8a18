"""Step times in the order in which they were measured, small enough to keep for every trial of a
large sweep.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from sweeper.core.record import Process, Record

MAX_PROCESSES = 15  # as many as `measure.target` starts


@dataclass(frozen=True, slots=True)
class ProcessSeries:
    """Seconds per step of one process, in arrays of doubles, which take a quarter of a tuple of
    floats.
    """

    index: int
    cold: bool
    first_s: array[float]  # the first compiled steps
    eager_s: array[float]  # means over blocks
    compiled_s: array[float]
    void: int = 0  # number of void rounds, whose blocks are left out

    @property
    def positive(self) -> bool:
        """Whether there is a time that a logarithmic axis takes."""
        return any(
            value > 0
            for values in (self.first_s, self.eager_s, self.compiled_s)
            for value in values
        )


def read_step_series(record: Record) -> tuple[ProcessSeries, ...]:
    """Read the series of processes that compiled. A trial that is not ok has none, as it has no
    speed.
    """
    processes = record.processes[:MAX_PROCESSES] if record.status == "ok" else ()
    return tuple(
        series for series in map(_read_process, processes) if series.first_s or series.compiled_s
    )


def _read_process(process: Process) -> ProcessSeries:
    steps = process.steps_per_block

    def read_blocks(arm: str) -> array[float]:
        return array("d", [block_s / steps for block_s in process.blocks_s(arm)] if steps else [])

    first_s, void = (
        array("d", process.first_steps_s),
        sum(item.void is not None for item in process.rounds),
    )
    return ProcessSeries(
        process.index, process.cold, first_s, read_blocks("eager"), read_blocks("compiled"), void
    )
