"""Joules per step, from the counter of the GPU: what the whole board uses while steps run one after
the other.

The passes come after the rounds. The counter moves ten to fifty times per second, so a pass takes
seconds.
"""

from collections.abc import Callable, Mapping
from statistics import fmean

from sweeper.core.record import PerArm

from .bench import Arm, Bench, Steps

# a reading that is 0.1 s old at either end is 3 % of it at most, and two passes are taken
PASS_S = 3.0
BEFORE_S = 0.3  # of the same steps, so that clocks and power are those that the arm keeps


class NoCounterError(Exception):
    """There is nothing to read; the text says why."""


def measure_energy(
    bench: Bench, step_s: Mapping[Arm, float], counter_j: Callable[[], float | None]
) -> Steps[PerArm]:
    """Joules per step of each arm, in the order ABBA; `step_s` holds both arms and their seconds
    per step.

    Raises NoCounterError.
    """
    if counter_j() is None:
        raise NoCounterError("no counter of energy: NVML knows none of this device")
    arms = list(step_s)
    used_j: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in (*arms, *reversed(arms)):
        yield from bench.run(arm, bench.round_up(BEFORE_S / step_s[arm]))
        steps = bench.round_up(PASS_S / step_s[arm])
        yield from bench.before_block(steps)
        bench.synchronize()
        before_j = counter_j()
        yield from bench.run(arm, steps)
        bench.synchronize()
        after_j = counter_j()
        if before_j is None or after_j is None:
            raise NoCounterError("NVML stopped counting this GPU's energy")
        used_j[arm.name].append((after_j - before_j) / steps)
    return PerArm(**{arm: fmean(passes) for arm, passes in used_j.items()})
