"""Host time: the seconds in which the host prepares and launches a step, however fast the device
is.

From an idle device a step is timed until its call returns, when its last launch has returned. These
are the host's own seconds as long as no call in the step waits for the device: no operation
synchronises, and the queue of launches never fills. Otherwise the host time is unknown.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median

import torch

from .bench import STEPS_BEFORE_BLOCK, Arm, Arms, Bench, Steps, without_collector
from .device_time import recording, select_work

TIMED_S = 0.4  # of steps per arm, within these numbers of steps of each size
MIN_STEPS, MAX_STEPS = 2, 20
# launches: the queue of a stream holds 1,024, and a launch that finds it full waits
MAX_QUEUED = 1000


def time_arms(bench: Bench, arms: Arms, wall_s: Mapping[str, float]) -> Steps[dict[str, float]]:
    """Time the calls of both arms in the order AB, BA, under the rules of a block; `wall_s` and the
    result are by arm.

    To be called before anything is profiled in this process: CUPTI stays attached afterwards, and
    launches take longer; steps of training took 10 to 20 % longer
    (https://github.com/pytorch/pytorch/pull/146604).
    """
    times_s: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in (*arms, *reversed(arms)):
        # of both readings together and each size, which comes equally often in either
        steps = round(TIMED_S / wall_s[arm.name] / bench.num_sizes)
        steps = min(max(MIN_STEPS, steps), MAX_STEPS)
        with without_collector():
            yield from bench.run(arm, bench.round_up(STEPS_BEFORE_BLOCK))
            half = math.ceil(steps / 2) * bench.num_sizes
            times_s[arm.name] += yield from bench.steps_s(arm, half, until_idle=False)
    return {arm: host_per_step(times, bench.num_sizes) for arm, times in times_s.items()}


def host_per_step(times_s: Sequence[float], num_sizes: int = 1) -> float:
    """The median over steps of one size, and the mean over sizes, which take turns."""
    return fmean(median(times_s[size::num_sizes]) for size in range(num_sizes))


def explain_unknown(
    bench: Bench, arm: Arm, host_s: float, device_s: float | None, kernels: float | None
) -> Steps[str | None]:
    """Explain why the time of the call may contain a wait for the device; None where it contains
    none. The device's seconds, and kernels, copies and memsets per step are as profiled.
    """
    if place := (yield from find_wait(bench, arm)):
        return f"the step waits for the device by itself ({place})"
    if device_s is not None and host_s >= device_s:
        return None  # the device caught up with the host, so the queue never filled
    if kernels is not None and kernels <= MAX_QUEUED:
        return None
    if (launches := (yield from count_launches(bench, arm))) <= MAX_QUEUED:
        return None
    return f"the step has {launches:,} launches, more than the queue of the device holds"


def find_wait(bench: Bench, arm: Arm) -> Steps[str | None]:
    """Find where a step waits for the device by itself, e.g. `masking_utils.py:312`; None where
    torch sees no wait.
    """
    with noting_waits() as waits:
        yield from bench.run(arm, bench.round_up(2))  # both batches, where sizes do not vary
    return next(iter(waits), None)


@contextmanager
def noting_waits() -> Iterator[list[str]]:
    """Note where torch's own operations wait for the device meanwhile, such as `item` and
    `nonzero`.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
    """
    before, waits = torch.cuda.get_sync_debug_mode(), list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
            waits += [
                f"{Path(item.filename).name}:{item.lineno}"
                for item in caught
                # c10/cuda/CUDAFunctions.cpp
                if "called a synchronizing CUDA operation" in str(item.message)
            ]


def count_launches(bench: Bench, arm: Arm) -> Steps[int]:
    """Count the launches of the longest step; all kernels of a CUDA graph have the correlation id
    of its one launch.
    """
    most = 0
    for _ in range(bench.num_sizes):
        with recording() as read:
            yield from bench.run(arm, 1)
        most = max(most, len({event.correlation_id() for event in select_work(read())}))
    return most
