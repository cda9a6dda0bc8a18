"""Device time: the second clock, which the host cannot disturb.

It is taken in passes after the rounds, so that the profiler's cost is in no wall time: steps under
torch's profiler. The device is busy in the union of all intervals in which a kernel, a copy or a
memset ran. Replays of CUDA graphs show their kernels. Its step time is this busy time and its own
gaps: after each kernel it needs about a microsecond that no host can remove. A gap counts up to the
length that gaps have when the next kernel was launched long before.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from .bench import Arms, Bench, Steps

STEPS = 5  # of a pass
STEPS_BEFORE, BEFORE_S = 1, 0.3  # a pass starts at the clocks that its arm keeps, as a block does
MAX_PASSES = 5  # of an arm; as many as fit into PASSES_S, at least one
PASSES_S = 1.0
BEYOND_WALL = 1.02  # a device that needed longer than the step took was not measured right
# a kernel was queued when its launch had returned for longer than this before the kernel began
QUEUED_NS = 20_000
MIN_QUEUED_GAPS = 10  # of an arm; with fewer, its gap is calibrated
CALIBRATING_KERNELS = 500  # fit into the queue of 1,024 launches
# 15 ms at 2 GHz: the host launches the calibrating kernels in a third of this
SPIN_CYCLES = 30_000_000
# begins the name of each kernel of NCCL, from its version 2.19 on; it waits for other ranks
COLLECTIVE = "ncclDevKernel"
# part of a kernel's name -> whose it is
ATTENTION = {"sdpa": "cudnn", "flash": "flash", "fmha": "memory_efficient"}


class Work(NamedTuple):
    """A kernel, copy or memset on the device; `launched_ns` is when the call that launched it had
    returned.

    All kernels of a CUDA graph have one launch, that of the graph. It is None where no launch is
    known.
    """

    start_ns: int
    end_ns: int
    launched_ns: int | None = None
    name: str = ""


class Gap(NamedTuple):
    """The time in which the device does nothing, and whether the work after it had been queued."""

    length_s: float
    queued: bool


class Pass(NamedTuple):
    """What was seen on the device in the steps of one pass; `kernels` counts copies and memsets as
    well.
    """

    busy_s: float
    kernels: int
    gaps: Sequence[Gap] = ()
    attention: frozenset[str] = frozenset()
    # seconds in which collectives ran and nothing else; None: there was none
    exposed_s: float | None = None


class Busy(NamedTuple):
    """Per step: seconds in which the device worked, kernels, copies and memsets, kinds of attention
    among them, and seconds in which collectives ran and nothing else.
    """

    busy_s: float
    kernels: float
    attention: frozenset[str] = frozenset()
    exposed_s: float | None = None


class StepTime(NamedTuple):
    """Seconds per step of the device; gaps up to `gap_s` are its own, a length that `source`
    gave.
    """

    step_s: float
    gap_s: float
    source: str  # steps or calibration


class UnknownError(Exception):
    """The profiler's answer cannot be used; the text says why."""


def profile_arms(
    bench: Bench, arms: Arms, step_s: Mapping[str, float]
) -> Steps[dict[str, list[Pass]]]:
    """Profile both arms in turn, AB, BA, ...; each pass has `STEPS` steps, or a few more.

    `step_s` holds each arm's undisturbed wall seconds per step.
    """
    passes: dict[str, list[Pass]] = {arm.name: [] for arm in arms}
    once_s = sum(step_s.values()) * STEPS + len(step_s) * BEFORE_S
    in_turn = arms
    for _ in range(min(max(1, int(PASSES_S / once_s)), MAX_PASSES)):
        for arm in in_turn:
            yield from bench.run(arm, max(STEPS_BEFORE, math.ceil(BEFORE_S / step_s[arm.name])))
            yield from bench.before_block(bench.round_up(STEPS))
            with recording() as read:
                yield from bench.run(arm, bench.round_up(STEPS))
            work = read_work(read())
            names = {item.name for item in work}
            attention = frozenset(kind for name in names if (kind := attention_kind(name)))
            busy_s, gaps = find_gaps(work)
            exposed_s = find_exposed_s(work)
            passes[arm.name].append(Pass(busy_s, len(work), gaps, attention, exposed_s))
        in_turn = in_turn[::-1]
    return passes


def busy_per_step(passes: Sequence[Pass], step_s: float, num_sizes: int = 1) -> Busy:
    """The median over passes, per step; the mean over steps of different sizes.

    Raises UnknownError when no kernel was seen, steps differ in their number of kernels, or the
    device would have been busy for longer than the step took (by 2 %).
    """
    counts = {item.kernels for item in passes}
    if counts == {0}:
        raise UnknownError("the profiler saw no kernel")
    steps = _count_steps(num_sizes)
    if len(counts) > 1 or passes[0].kernels % (steps // num_sizes):
        raise UnknownError(
            f"steps differ in their number of kernels: {sorted(counts)} in passes of {steps} steps"
        )
    busy_s = median(item.busy_s for item in passes) / steps
    if busy_s > BEYOND_WALL * step_s:
        raise UnknownError(f"busy for {busy_s * 1e3:.3f} ms in a step of {step_s * 1e3:.3f} ms")
    exposed_s = [item.exposed_s for item in passes if item.exposed_s is not None]
    exposed = median(exposed_s) / steps if exposed_s else None
    return Busy(busy_s, passes[0].kernels / steps, passes[0].attention, exposed)


def step_time(
    passes: Sequence[Pass], step_s: float, num_sizes: int, calibrate: Callable[[], float]
) -> StepTime:
    """Busy time and the device's own gaps: the median over passes, per step, of passes that
    `busy_per_step` accepts.

    `calibrate` gives the machine's own gap; an arm takes it that has too few gaps before queued
    work. Raises UnknownError when the device would have needed longer than the step took (by 2 %).
    """
    queued_s = [gap.length_s for item in passes for gap in item.gaps if gap.queued]
    known = len(queued_s) >= MIN_QUEUED_GAPS
    gap_s = own_gap_s(queued_s) if known else calibrate()
    device_s = median_pass_s(passes, gap_s) / _count_steps(num_sizes)
    if device_s > BEYOND_WALL * step_s:
        raise UnknownError(
            f"the device needs {device_s * 1e3:.3f} ms for a step of {step_s * 1e3:.3f} ms"
        )
    return StepTime(device_s, gap_s, "steps" if known else "calibration")


def median_pass_s(passes: Sequence[Pass], gap_s: float) -> float:
    """Return the median of busy time and gaps over passes; a gap counts up to `gap_s`."""
    return median(
        item.busy_s + sum(min(gap.length_s, gap_s) for gap in item.gaps) for item in passes
    )


def own_gap_s(queued_s: Sequence[float]) -> float:
    """Return the first quartile of gaps before queued work, up to which any gap is the device's
    own.

    Low, since the profiler lengthens some gaps, and queued work may wait for more than the device
    itself, for example for another stream. Where arms keep the device busy, gaps differ little:
    their means are 0.6 to 1.5 us (docs/results/h200-repeatability.md).
    """
    return quantiles(queued_s, n=4, method="inclusive")[0]


@functools.cache
def calibrate_gap_s() -> float:
    """Measure the gap between tiny kernels, all launched while a kernel that spins keeps the device
    busy.

    Raises UnknownError when the profiler did not see them. Once per process.
    """
    numbers = torch.zeros(1, device="cuda")

    def launch() -> None:
        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
        for _ in range(CALIBRATING_KERNELS):
            numbers.add_(1)

    launch()  # the first launch of a kernel loads it
    with recording() as read:
        launch()
    work = read_work(read())
    _, gaps = find_gaps(work)
    if len(gaps) < MIN_QUEUED_GAPS:
        raise UnknownError(
            f"the profiler saw {len(work)} of {CALIBRATING_KERNELS + 1} kernels that calibrate "
            "the gap"
        )
    return own_gap_s([gap.length_s for gap in gaps])


def find_gaps(work: Iterable[Work]) -> tuple[float, list[Gap]]:
    """Return the seconds in which any work ran, overlaps counted once, and the gaps in which none
    did.
    """
    gaps = []
    covered_ns, reached_ns = 0, -1
    for item in sorted(work, key=lambda item: item.start_ns):
        if 0 <= reached_ns < item.start_ns:
            launched_ns = item.launched_ns
            queued = launched_ns is not None and item.start_ns - launched_ns > QUEUED_NS
            gaps.append(Gap((item.start_ns - reached_ns) * 1e-9, queued))
        covered_ns += max(0, item.end_ns - max(item.start_ns, reached_ns))
        reached_ns = max(reached_ns, item.end_ns)
    return covered_ns * 1e-9, gaps


def find_exposed_s(work: Sequence[Work]) -> float | None:
    """Return the seconds in which collectives ran and nothing else; None where there was none."""
    others = [item for item in work if not item.name.startswith(COLLECTIVE)]
    if len(others) == len(work):
        return None
    return find_gaps(work)[0] - find_gaps(others)[0]


def _count_steps(num_sizes: int) -> int:
    """Count the steps of a pass, in which each size comes equally often."""
    return math.ceil(STEPS / num_sizes) * num_sizes


@contextmanager
def recording() -> Iterator[Callable[[], Sequence[Any]]]:
    """Record what the device does meanwhile; what this gives returns torch's `_KinetoEvent`s
    afterwards.
    """
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        yield lambda: profile.profiler.kineto_results.events()  # `profile.events()` takes seconds
        torch.cuda.synchronize()


def select_work(events: Iterable[Any], device: DeviceType = DeviceType.CUDA) -> list[Any]:
    """Select what ran on the device, kernels, copies and memsets; or on another one."""
    return [
        event
        for event in events
        if event.device_type() == device and not event.is_user_annotation()
    ]


def read_work(events: Sequence[Any]) -> list[Work]:
    """Join what ran on the device with the calls that launched it; both have the correlation id of
    CUPTI.

    `events` are torch's `_KinetoEvent`. Where an id is missing (0 or below), so is the launch. The
    calls are those of the CUDA runtime and driver (cudaLaunchKernel, cuLaunchKernelEx,
    cudaGraphLaunch, cudaMemcpyAsync, ...).
    """
    launched_ns = {
        call.correlation_id(): call.end_ns()
        for call in select_work(events, DeviceType.CPU)
        if call.correlation_id() > 0 and call.name().startswith("cu")
    }
    return [
        Work(
            item.start_ns(),
            item.end_ns(),
            launched_ns.get(item.correlation_id()),
            item.name(),
        )
        for item in select_work(events)
    ]


def attention_kind(kernel: str) -> str | None:
    """Whose attention a kernel computes: cudnn, flash or memory_efficient; None for every other
    kernel.
    """
    return next((kind for part, kind in ATTENTION.items() if part in kernel.lower()), None)
