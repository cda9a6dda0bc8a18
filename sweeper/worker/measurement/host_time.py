"""Host time: the seconds in which the host prepares and launches a step, however fast the device is.

From an idle device a step is timed until its call returns, when its last launch has returned. These are the host's own
seconds as long as no call in the step waits for the device: no operation synchronises, and the queue of launches never
fills. Otherwise the host time is unknown.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import torch

from sweeper.worker.failures import Missing
from sweeper.worker.measurement.bench import STEPS_BEFORE_BLOCK, Arm, Bench
from sweeper.worker.measurement.device_time import record_events, select_work

TIMED_S = 1.0  # of steps per arm, within these numbers of steps of each size
MIN_STEPS, MAX_STEPS = 5, 20
MAX_QUEUED = 1000  # launches: the queue of a stream holds 1,024, and a launch that finds it full waits
WAITS = "called a synchronizing CUDA operation"  # torch's warning, in c10/cuda/CUDAFunctions.cpp


@dataclass(frozen=True)
class Known:
    """What the profiler says of an arm, per step: device seconds, kernels, copies and memsets."""

    device_s: float | None
    kernels: float | None


def time_arms(bench: Bench, arms: tuple[Arm, Arm], wall_s: Mapping[str, float]) -> dict[str, float]:
    """Time the calls of both arms in the order AB, BA; return seconds per step by arm. `wall_s` is by arm as well.

    To be called before anything is profiled in this process: CUPTI stays attached afterwards, and launches take longer;
    steps of training took 10 to 20 % longer (https://github.com/pytorch/pytorch/pull/146604).
    """
    times_s: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in (*arms, *reversed(arms)):
        times_s[arm.name] += _time_calls(bench, arm, count_steps(wall_s[arm.name], bench.num_sizes))
    return {arm: host_per_step(times, bench.num_sizes) for arm, times in times_s.items()}


def count_steps(wall_s: float, num_sizes: int) -> int:
    """Count the steps of one of an arm's two readings, in which each size comes equally often."""
    steps = min(max(MIN_STEPS, round(TIMED_S / wall_s / num_sizes)), MAX_STEPS)
    return -(-steps // 2) * num_sizes


def leave_out_unknown(
    bench: Bench, arms: tuple[Arm, Arm], host_s: Mapping[str, float], known: Mapping[str, Known]
) -> dict[str, float | Missing]:
    """Give a reason in place of each time that may contain a wait for the device; both mappings are by arm."""
    reasons = {arm.name: _explain_unknown(bench, arm, host_s[arm.name], known[arm.name]) for arm in arms}
    return {arm: Missing(reason) if (reason := reasons[arm]) else time_s for arm, time_s in host_s.items()}


def host_per_step(times_s: Sequence[float], num_sizes: int = 1) -> float:
    """The median over steps of one size, and the mean over sizes, which take turns."""
    return fmean(median(times_s[size::num_sizes]) for size in range(num_sizes))


def _time_calls(bench: Bench, arm: Arm, steps: int) -> list[float]:
    """Time the call of each step from an idle device, under the rules of a block."""
    gc.collect()
    gc.disable()
    try:
        bench.run(arm, bench.round_up(STEPS_BEFORE_BLOCK), "fail_on_recompile")
        return bench.steps_s(arm, steps, "fail_on_recompile", until_idle=False)
    finally:
        gc.enable()


def _explain_unknown(bench: Bench, arm: Arm, host_s: float, known: Known) -> str | None:
    """Explain why the time of the call may contain a wait for the device; None where it contains none."""
    return explain_wait(find_wait(bench, arm), host_s, known, lambda: count_launches(bench, arm))


def explain_wait(place: str | None, host_s: float, known: Known, count: Callable[[], int | None]) -> str | None:
    """Explain why a host time may contain a wait; `place` is where torch saw one, `count` the launches of a step."""
    if place:
        return f"the step waits for the device by itself ({place})"
    if known.device_s is not None and host_s >= known.device_s:
        return None  # the device caught up with the host, so the queue never filled
    if known.kernels is not None and known.kernels <= MAX_QUEUED:
        return None
    launches = count()
    if launches is None:
        return f"the step may have more than {MAX_QUEUED:,} launches, which the queue of the device may not hold"
    if launches <= MAX_QUEUED:
        return None
    return f"the step has {launches:,} launches, more than the queue of the device holds"


def find_wait(bench: Bench, arm: Arm) -> str | None:
    """Find where a step waits for the device by itself, e.g. `masking_utils.py:312`; None where torch sees no wait."""
    with noting_waits() as waits:
        bench.run(arm, bench.round_up(2))  # both batches, where sizes do not vary
    return next(iter(waits), None)


@contextmanager
def noting_waits() -> Iterator[list[str]]:
    """Note where torch's own operations wait for the device meanwhile, such as `item` and `nonzero`.

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
            waits += [f"{Path(item.filename).name}:{item.lineno}" for item in caught if WAITS in str(item.message)]


def count_launches(bench: Bench, arm: Arm) -> int:
    """Count the launches of the longest step; all kernels of a CUDA graph have the correlation id of its one launch."""
    counts = []
    for _ in range(bench.num_sizes):
        work = select_work(record_events(lambda: bench.run(arm, 1)))
        counts.append(len({event.correlation_id() for event in work}))
    return max(counts)
