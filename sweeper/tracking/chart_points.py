"""The figures of a record that have an order: points that MLflow draws as lines.

Place in the flow: `Record -> Point`s, which `tracking` sends with the other figures of a trial in one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sweeper.core.record import Record

# Of one trial. With all else a trial shows this stays below the 1,000 entities that MLflow takes in a call.
MAX_ROUNDS = 150
MAX_FIRST_STEPS = 50


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    step: int
    value: float


def points(record: Record) -> tuple[Point, ...]:
    """Step times and speedups by round, the first compiled steps by their number; what is missing has no point.

    Rounds are counted on from process to process, so that a process that differs shows as a level of its own. As
    with all figures, those of the compiled arm are there only for status `ok`: a wrong program has no speed.
    """
    found = (*islice(_first_steps(record), MAX_FIRST_STEPS), *_rounds(record))
    return tuple(point for point in found if math.isfinite(point.value))


def _first_steps(record: Record) -> Iterator[Point]:
    """Of the first process that compiled, milliseconds."""
    if record.status != "ok":
        return
    steps_s = next((process.first_steps_s for process in record.processes if process.first_steps_s), ())
    for step, step_s in enumerate(steps_s):
        yield Point("first_step_ms", step, 1e3 * step_s)


def _rounds(record: Record) -> Iterator[Point]:
    """Milliseconds a step, means over blocks, and the speedup; void rounds leave a gap."""
    rounds = ((process.steps_per_block, item) for process in record.processes for item in process.rounds)
    for step, (steps, item) in enumerate(islice(rounds, MAX_ROUNDS)):
        if item.void is not None or not steps:
            continue
        if item.eager_s is not None:
            yield Point("eager_step_ms", step, 1e3 * item.eager_s / steps)
        if item.compiled_s is not None and record.status == "ok":
            yield Point("compiled_step_ms", step, 1e3 * item.compiled_s / steps)
            if item.eager_s is not None and item.compiled_s > 0:
                yield Point("round_speedup", step, item.eager_s / item.compiled_s)
