"""How far two measurements of one program lie apart for reasons that a comparison has not sampled.

Processes of one draw do not show what autotuning does, and few processes do not show what a host
does. Both have been measured. A step time that changed by more is a regression of unknown size.
"""

import math
from collections.abc import Mapping

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.report.answers.candidates import HOST_NOISE, NOISE

from .pairs import Sides
from .quantities import Quantity

# Another draw, process, session or GPU, where no host disturbs the step: on H200s at most 1.3 % by
# wall clock and 0.7 % by device time (docs/results/h200-scheduling.md), with room for other
# machines. A CPU's clock wobbles by 10 %.
DRAW_NOISE: Mapping[str, float] = {"cuda": NOISE, "cpu": 0.10}
# A host that disturbs it. On a busy machine of two cores, processes of one trial were 2.32 times
# apart (docs/results/compare-power.md).
HOST_NOISES: Mapping[str, float] = {"cuda": HOST_NOISE, "cpu": 1.32}


def find_unsampled_logs(sides: Sides, quantity: Quantity, moved: bool) -> tuple[float, float]:
    """Return the logs by which draws and the host may change a step time; 0 for a host that was
    sampled.

    `moved`: eager's step times say that the sessions differ, so that no number of processes samples
    the host.
    """
    kind = "cuda"
    if sides[0].trial.device == "cpu":
        kind = "cpu"
    draws = math.log1p(DRAW_NOISE[kind])
    if not moved and count_fewest(sides, quantity) >= _needed_processes(sides, quantity):
        return draws, 0.0
    return draws, math.log1p(HOST_NOISES[kind])


def count_fewest(sides: Sides, quantity: Quantity) -> int:
    """How many processes the side with fewer of them has measured a quantity in."""
    return min(len(side.take(quantity)) for side in sides)


def is_host_bound(sides: Sides, quantity: Quantity) -> bool:
    """Whether the host spoils the quantity on either side."""
    spoilt = {*quantity.arms, "both"}
    return bool(quantity.arms) and any(side.host_bound_arms in spoilt for side in sides)


def _needed_processes(sides: Sides, quantity: Quantity) -> int:
    """How many processes a side needs to show what its host does to a quantity; no host disturbs
    device times.
    """
    if not quantity.arms:
        return 1
    if is_host_bound(sides, quantity):
        return MIN_PROCESSES_IF_HOST_BOUND
    if any(side.trial.device == "cpu" or "unsteady" in side.flags for side in sides):
        return 2
    return 1
