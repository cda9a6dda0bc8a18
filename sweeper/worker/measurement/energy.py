"""Joules a step, from the counter of the GPU: what the whole board used while steps ran one after the other.

A pass of its own, after all that is timed. The counter moves ten to fifty times a second, so a pass takes seconds.
Place in the flow: `session` asks for it last, with `measure.energy=true`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean

from sweeper.core.record import PerArm
from sweeper.worker.measurement.bench import Arm, Bench

PASS_S = 3.0  # a reading that is 0.1 s old at either end is 3 % of it at most, and two passes are taken
BEFORE_S = 0.3  # of the same steps, so that clocks and power are those that the arm keeps


class NoCounterError(Exception):
    """There is nothing to read; the text says why."""


def of_arms(bench: Bench, step_s: Mapping[Arm, float], counter_j: Callable[[], float | None]) -> PerArm:
    """Joules a step of each arm, in the order ABBA; `step_s` holds both arms and how long a step takes.

    Raises NoCounterError.
    """
    if counter_j() is None:
        raise NoCounterError("no counter of energy: NVML knows none of this device")
    arms = list(step_s)
    used_j: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in (*arms, *reversed(arms)):
        used_j[arm.name].append(_a_step(bench, arm, step_s[arm], counter_j))
    return PerArm(**{arm: fmean(found) for arm, found in used_j.items()})


def _a_step(bench: Bench, arm: Arm, step_s: float, counter_j: Callable[[], float | None]) -> float:
    bench.run(arm, bench.whole(math.ceil(BEFORE_S / step_s)))
    steps = bench.whole(math.ceil(PASS_S / step_s))
    bench.synchronize()
    before_j = counter_j()
    bench.run(arm, steps)
    bench.synchronize()
    after_j = counter_j()
    if before_j is None or after_j is None:
        raise NoCounterError("NVML stopped to count this GPU's energy")
    return (after_j - before_j) / steps
