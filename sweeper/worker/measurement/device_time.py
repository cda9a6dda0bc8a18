"""Device busy time: the second clock, which the host cannot disturb.

It is taken in passes after the rounds, so that the profiler's cost is in no wall time: steps under torch's profiler,
and the union of all intervals in which a kernel, a copy or a memset ran. Replays of CUDA graphs show their kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from sweeper.worker.measurement.bench import Arm, Bench

STEPS = 5  # of a pass
STEPS_BEFORE, BEFORE_S = 2, 0.3  # a pass starts at the clocks that its arm keeps, as a block does
MAX_PASSES = 5  # of an arm; as many as fit into PASSES_S, at least one
PASSES_S = 1.5
BEYOND_WALL = 1.02  # a device that was busy for longer than the step took was not measured right
ATTENTION = {"sdpa": "cudnn", "flash": "flash", "fmha": "memory_efficient"}  # part of a kernel's name -> whose it is


@dataclass(frozen=True)
class Busy:
    """Seconds in which the device worked, its kernels, copies and memsets, and the attention kernels among them."""

    busy_s: float
    kernels: float
    attention: frozenset[str] = frozenset()


class UnknownError(Exception):
    """The profiler's answer cannot be used; the text says why."""


def profile_arms(bench: Bench, arms: tuple[Arm, Arm], step_s: Mapping[str, float]) -> dict[str, list[Busy]]:
    """Profile both arms in turn, AB, BA, ...; each `Busy` is of one pass of `STEPS` steps, or a few more.

    `step_s` holds each arm's undisturbed wall seconds per step.
    """
    once_s = sum(step_s.values()) * STEPS + len(arms) * BEFORE_S
    passes: dict[str, list[Busy]] = {arm.name: [] for arm in arms}
    for index in range(min(max(1, int(PASSES_S / once_s)), MAX_PASSES)):
        for arm in arms if index % 2 == 0 else arms[::-1]:
            bench.run(arm, max(STEPS_BEFORE, math.ceil(BEFORE_S / step_s[arm.name])))
            passes[arm.name].append(_profile_pass(bench, arm))
    return passes


def busy_per_step(passes: Sequence[Busy], step_s: float, num_sizes: int = 1) -> Busy:
    """The median over passes, per step; the mean over steps of different sizes.

    Raises UnknownError when no kernel was seen, steps differ in their number of kernels, or the device would have been
    busy for longer than the step took (by 2 %).
    """
    counts = {item.kernels for item in passes}
    if counts == {0}:
        raise UnknownError("the profiler saw no kernel")
    steps = math.ceil(STEPS / num_sizes) * num_sizes  # of a pass, in which each size comes equally often
    if len(counts) > 1 or passes[0].kernels % (steps // num_sizes):
        raise UnknownError(f"steps differ in their number of kernels: {sorted(counts)} in passes of {steps} steps")
    busy_s = median(item.busy_s for item in passes) / steps
    if busy_s > BEYOND_WALL * step_s:
        raise UnknownError(f"busy for {busy_s * 1e3:.3f} ms in a step of {step_s * 1e3:.3f} ms")
    return Busy(busy_s, passes[0].kernels / steps, passes[0].attention)


def _profile_pass(bench: Bench, arm: Arm) -> Busy:
    """Profile steps one after the other, as in a block; times and counts are of all of them."""
    bench.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        bench.run(arm, bench.round_up(STEPS))
        bench.synchronize()
    events = profile.profiler.kineto_results.events()  # `profile.events()` takes seconds for the same
    work = [event for event in events if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()]
    attention = frozenset(kind for name in {event.name() for event in work} if (kind := attention_kind(name)))
    return Busy(union_s((event.start_ns(), event.end_ns()) for event in work), len(work), attention)


def attention_kind(kernel: str) -> str | None:
    """Whose attention a kernel computes: cudnn, flash or memory_efficient; None for every other kernel."""
    return next((kind for part, kind in ATTENTION.items() if part in kernel.lower()), None)


def union_s(intervals_ns: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by intervals of nanoseconds, overlaps counted once."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals_ns):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered * 1e-9
