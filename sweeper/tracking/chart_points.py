"""Figures of a record that have an order, as points that MLflow draws as lines."""

from __future__ import annotations

import math
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
    points = []
    is_ok = record.status == "ok"
    if is_ok:  # milliseconds, of the first process that compiled
        steps_s = next((process.first_steps_s for process in record.processes if process.first_steps_s), ())
        points += [Point("first_step_ms", step, 1e3 * took_s) for step, took_s in enumerate(steps_s[:MAX_FIRST_STEPS])]
    rounds = [(process.steps_per_block, item) for process in record.processes for item in process.rounds]
    for step, (steps, item) in enumerate(rounds[:MAX_ROUNDS]):
        if item.void is not None or not steps:
            continue  # which leaves a gap
        if item.eager_s is not None:
            points.append(Point("eager_step_ms", step, 1e3 * item.eager_s / steps))
        if item.compiled_s is not None and is_ok:
            points.append(Point("compiled_step_ms", step, 1e3 * item.compiled_s / steps))
            if item.eager_s is not None and item.compiled_s > 0:
                points.append(Point("round_speedup", step, item.eager_s / item.compiled_s))
    return tuple(point for point in points if math.isfinite(point.value))
