"""Figures of a record that have an order, as points that MLflow draws as lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sweeper.core.record import Record

# Limits per trial: with everything else that a run shows they stay below the 1,000 entities that MLflow takes per call.
MAX_ROUNDS = 150
MAX_FIRST_STEPS = 50


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    step: int
    value: float


def list_points(record: Record) -> tuple[Point, ...]:
    """List step times and speedups by round, and the first compiled steps by number. A missing value has no point.

    Rounds are numbered on from process to process, so that a process that differs shows as a level of its own. The
    compiled arm has points only for status `ok`: a wrong program has no speed.
    """
    points = (*islice(_first_steps(record), MAX_FIRST_STEPS), *_rounds(record))
    return tuple(point for point in points if math.isfinite(point.value))


def _first_steps(record: Record) -> Iterator[Point]:
    """Yield milliseconds of the first compiled steps, from the first process that compiled."""
    if record.status == "ok":
        steps_s = next((process.first_steps_s for process in record.processes if process.first_steps_s), ())
        for step, step_s in enumerate(steps_s):
            yield Point("first_step_ms", step, 1e3 * step_s)


def _rounds(record: Record) -> Iterator[Point]:
    """Yield milliseconds per step, as means over blocks, and the speedup of each round. Void rounds leave a gap."""
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
