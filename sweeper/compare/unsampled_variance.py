"""How far two measurements of one program lie apart for reasons that a comparison has not sampled.

Processes of one draw do not show what autotuning does, and few processes do not show what a host
does. Both have been measured. A step time that changed by more is a regression of unknown size.
"""

import math

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.analysis.margins import find_unsampled

from .pairs import Sides
from .quantities import Quantity


def find_unsampled_logs(sides: Sides, quantity: Quantity, moved: bool) -> tuple[float, float]:
    """Return the logs by which draws and the host may change a quantity; 0 for a host that was
    sampled, and infinite where a flag of a side spoils the quantity.

    `moved`: eager's step times say that the sessions differ, so that no number of processes samples
    the host.
    """
    if is_spoilt(sides, quantity):
        return math.inf, 0.0
    if quantity.unsampled is not None:
        return math.log1p(quantity.unsampled), 0.0
    samples_host = not moved and not has_few(sides, quantity)
    return find_unsampled(sides[0].trial.device, False, samples_host)


def has_few(sides: Sides, quantity: Quantity) -> bool:
    """Whether a side has too few processes to show what its host does to a quantity; a host
    disturbs no device time.
    """
    needed = 1
    if is_host_bound(sides, quantity):
        needed = MIN_PROCESSES_IF_HOST_BOUND
    elif quantity.arms and any(
        side.trial.device == "cpu" or "unsteady" in side.flags for side in sides
    ):
        needed = 2
    return count_fewest(sides, quantity) < needed


def find_spread(sides: Sides, quantity: Quantity) -> float:
    """Return the log of the largest figure of a process over the smallest of its side, on the side
    where they lie further apart.
    """
    spreads = []
    for side in sides:
        values = [sample.value for sample in side.take(quantity)]
        spreads.append(math.log(max(values) / min(values)))
    return max(spreads)


def count_fewest(sides: Sides, quantity: Quantity) -> int:
    """How many processes the side with fewer of them has measured a quantity in."""
    return min(len(side.take(quantity)) for side in sides)


def is_spoilt(sides: Sides, quantity: Quantity) -> bool:
    """Whether a flag of either side spoils the quantity."""
    return any(quantity.spoilt_by in side.flags for side in sides)


def is_host_bound(sides: Sides, quantity: Quantity) -> bool:
    """Whether the host spoils the quantity on either side."""
    spoilt = {*quantity.arms, "both"}
    return bool(quantity.arms) and any(side.host_bound_arms in spoilt for side in sides)
