"""A record to its figures: `derive`, with the formulas of speedups, intervals, break-even and host
headroom, and the share of waiting from which an arm is host-bound.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import ARMS, Accuracy, PerArm, Process, Record, of_arm

from .metrics import METRICS, Reading, read_loop_step_s
from .result import NO_ARMS, Result, Start
from .stats import (
    NOT_KNOWN,
    Bounded,
    Estimate,
    group_logs_by_draw,
    mean_over_draws,
    median_of,
    ratio_of,
)

# with fewer compile caches, an interval describes these compiled artifacts alone
MIN_DRAWS_FOR_INTERVAL = 3
# Between two kernels that follow each other without waiting for the host: 0.6 to 1.5 us, typically
# 1.1, in the arms of six models on an H200 (docs/results/h200-repeatability.md). It stands in where
# a process has no gap of its own.
USUAL_GAP_S = 1.2e-6
# an arm is host-bound when its device waits for the host for a larger share of wall time
HOST_BOUND = 0.05
# wall seconds of a step over those of its device work, above which it waits for its host
MIN_WAITING = 1.25
# Host noise may be bimodal, and a few processes may all lie in one mode: docs/results/coverage.md.
MIN_PROCESSES_IF_HOST_BOUND = 5


def derive(record: Record) -> Result:
    """Compute the figures of a record. Speedups and what needs them exist only for status `ok`."""
    measured = [process for process in record.processes if read_speedup(process)]
    is_right = record.status == "ok" and bool(measured)
    readings = {}
    for metric in METRICS:
        if metric.of_process and (is_right or not metric.needs_ok):
            value = metric.read(record.processes)
            if value is not None:
                readings[metric.name] = value
    graph_breaks = recompiles = None
    if found := record.diagnostics:
        graph_breaks = sum(item.count for item in found.graph_breaks)
        recompiles = found.recompiles
    result = Result(
        processes=len(measured),
        draws=len({process.draw for process in measured}),
        eager_step=_estimate(measured, lambda process: process.steps_s.eager),
        artifacts=len(record.artifacts) or None,
        code=next(filter(None, (process.code_fingerprint for process in record.processes)), None),
        seen_of_script=next(filter(None, (process.script for process in record.processes)), None),
        graph_breaks=graph_breaks,
        recompiles=recompiles,
        readings=readings,
        starts=tuple(_list_starts(record)),
    )
    if not is_right:
        return result
    result = _add_speedups(result, record, measured)
    return _add_missing(_add_headroom(result), record)


def _list_starts(record: Record) -> Iterator[Start]:
    for cold in (True, False):
        processes = [process for process in record.processes if process.cold is cold]
        if processes:
            first, bypasses = processes[0], Counter[str]()
            for process in processes:
                bypasses |= Counter(process.cache_bypasses)
            yield Start(
                cold,
                median_of(process.time_to_first_step_s for process in processes),
                median_of(map(_read_steady_s, processes)),
                median_of(_in_ms(process.steps_s) for process in processes),
                median_of(_in_ms(process.device_step_s) for process in processes),
                first.autograd_cache,
                first.compile_cache,
                bypasses,
            )


def _in_ms(found: PerArm | None) -> float | None:
    """Read the milliseconds of a compiled step."""
    step_s = of_arm(found, "compiled")
    return None if step_s is None else step_s * 1e3


def _read_steady_s(process: Process) -> float | None:
    """Read the seconds from the start of a process to the end of its first compiled steps."""
    if process.time_to_first_step_s is None:
        return None
    return process.time_to_first_step_s + sum(process.first_steps_s[1:])


def find_worst_accuracy(record: Record) -> Accuracy | None:
    """Return the check of the process whose compiled step came nearest to its bound, or went
    furthest beyond it.
    """

    def rank(accuracy: Accuracy) -> tuple[bool, float]:
        failed, error, bound = accuracy.passed is False, accuracy.compiled_error, accuracy.bound
        share = 0.0
        if error is None or bound is None:
            # a failed check without a finite error, or nothing was compared
            share = math.inf if failed else -1.0
        elif error:
            share = error / bound if bound else math.inf
        return failed, share

    found = [process.accuracy for process in record.processes if process.accuracy]
    return max(found, key=rank, default=None)


def find_break_even(
    compile_s: float | None, eager_s: float | None, speedup: Estimate | None
) -> Bounded:
    """Find the steps after which compiling has paid, compile_s / (eager_s - compiled_s), at the
    speedup and at both its ends; None when it never does.
    """
    if compile_s is None or eager_s is None or speedup is None:
        return NOT_KNOWN

    def count_steps(ratio: float) -> float | None:
        saved_s = eager_s - eager_s / ratio
        return max(compile_s, 0.0) / saved_s if saved_s > 0 else None

    # the larger the speedup, the fewer the steps
    ends = reversed(speedup.interval() or ())
    return Bounded(*map(count_steps, (speedup.ratio, *ends)))


def find_host_s(host_s: float, device_s: float, step_s: float) -> float:
    """Find the seconds that the host takes for a step when one follows another.

    `host_s` was timed in single steps, each from an idle device, and is only known where no call in
    a step waits for the device. So a step that takes clearly longer than its device work waits for
    its host, and its wall time is the host's; and no step is shorter than what its host does.
    """
    if step_s > MIN_WAITING * device_s:
        return step_s
    return min(host_s, step_s)


def predict_speedup(
    eager_host_s: float,
    eager_device_s: float,
    compiled_host_s: float,
    compiled_device_s: float,
    host_slowdown: float,
) -> float:
    """Predict the speedup where the host takes `host_slowdown` times as long for a step as here, in
    both arms.

    Host and device work side by side, so the slower of the two decides.
    """
    eager_s = max(eager_host_s * host_slowdown, eager_device_s)
    return eager_s / max(compiled_host_s * host_slowdown, compiled_device_s)


def predict_loop_speedup(result: Result) -> float | None:
    """Predict the speedup of a script's loop by Amdahl's law: steps become as much faster as in the
    rounds, the loop waits longer for its loader where it was seen to, and the rest takes as long.

    None where it is not known, and where the compiled loop had several shapes, compiled again, or
    had other events than eager's: the rounds show nothing of these.
    """
    seen, step_s, loop_s = result.seen_of_script, result.step_s, result.loop_step_s.eager
    run = seen.loop_compiled if seen else None
    if not (seen and run and step_s.eager and loop_s and result.speedup and result.loop_speedup):
        return None
    if seen.num_shapes > 1 or run.recompiles or run.left_out:
        return None
    saved = min(step_s.eager / loop_s, 1.0) * (1 - 1 / result.speedup.ratio)
    # as shares of the eager loop; eager may wait while its device computes
    wait = (result.loader_share.compiled or 0.0) / result.loop_speedup.ratio
    return 1 / (1 - saved + max(wait - (result.loader_share.eager or 0.0), 0.0))


def read_speedup(process: Process) -> float | None:
    """Return the speedup of a process by the wall clock; None where an arm was not timed."""
    return process.steps_s.ratio


def _add_speedups(result: Result, record: Record, measured: Sequence[Process]) -> Result:
    """Add step times and throughput, speedups by the wall clock, of the device and of a script's
    loop, and when compiling has paid.
    """
    waits = PerArm(_find_waiting(measured, "eager"), _find_waiting(measured, "compiled"))
    bound = [arm for arm in ARMS if (of_arm(waits, arm) or 0.0) > HOST_BOUND]
    speedup = _estimate(measured, read_speedup, bool(bound))
    # Steps are estimated as the speedup is, so that the ratio of the arms is the speedup.
    eager = _estimate(measured, lambda process: process.steps_s.eager, "eager" in bound)
    compiled = _estimate(measured, lambda process: process.steps_s.compiled, "compiled" in bound)
    loop_speedup = _estimate(measured, lambda process: read_loop_step_s(process).ratio)
    assert speedup is not None
    assert compiled is not None
    interval, arms = "none", "both"
    if speedup.variance is not None:
        interval = "draws" if result.draws >= MIN_DRAWS_FOR_INTERVAL else "processes"
    if len(bound) < len(ARMS):
        arms = "".join(bound)
    low = high = samples_per_s = tokens_per_s = None
    if len(measured) > 1:
        logs = list(map(math.log, filter(None, map(read_speedup, measured))))
        low, high = math.exp(min(logs)), math.exp(max(logs))
    if record.trial.workload != SCRIPT:
        samples = record.trial.replace_batch_size(record.batch_size).samples_per_step
        samples_per_s = samples / compiled.ratio
    if tokens := measured[0].tokens_per_step:
        tokens_per_s = tokens / compiled.ratio
    eager_s, decisive = ratio_of(eager), speedup
    if loop_speedup:
        eager_s, decisive = result.loop_step_s.eager, loop_speedup
    return replace(
        result,
        interval=interval,
        speedup=speedup,
        speedup_min=low,
        speedup_max=high,
        device_speedup=_estimate(
            measured, lambda process: (process.device_step_s or NO_ARMS).ratio
        ),
        loop_speedup=loop_speedup,
        host_bound_fraction=waits.largest,
        compiled_waits_fraction=waits.compiled,
        host_bound_arms=arms or None,
        eager_step=eager,
        compiled_step=compiled,
        samples_per_s=samples_per_s,
        tokens_per_s=tokens_per_s,
        break_even_steps=find_break_even(result.compile_cold_s, eager_s, decisive),
        break_even_warm_steps=find_break_even(result.compile_warm_s, eager_s, decisive),
    )


def _find_waiting(measured: Sequence[Process], arm: str) -> float | None:
    """Find the share of an arm's wall time in which the device waits for the host, beyond its own
    gaps, or the usual gaps where the device step time is unknown; the median over processes.
    """
    shares = []
    for process in measured:
        step_s, device_s = of_arm(process.steps_s, arm), of_arm(process.device_step_s, arm)
        busy_s, kernels = of_arm(process.device_time_s, arm), of_arm(process.device_kernels, arm)
        if device_s is None and busy_s is not None and kernels is not None:
            device_s = busy_s + kernels * USUAL_GAP_S
        if device_s is not None and step_s:
            shares.append(max(0.0, 1 - device_s / step_s))
    return median_of(shares)


def _estimate(
    measured: Sequence[Process], read: Reading, is_host_bound: bool = False
) -> Estimate | None:
    """Estimate the mean log over processes, or over draws where there are enough: each draw tunes
    kernels anew.

    A host-bound mean over few processes gets no variance, and so no interval: the range of
    processes is shown.
    """
    draws = group_logs_by_draw((process.draw, read(process)) for process in measured)
    if not draws:
        return None
    estimate = mean_over_draws(draws, len(draws) >= MIN_DRAWS_FOR_INTERVAL)
    if is_host_bound and len(measured) < MIN_PROCESSES_IF_HOST_BOUND:
        return Estimate(estimate.log, count=estimate.count)
    return estimate


def _add_headroom(result: Result) -> Result:
    """Add the shares of arms whose two times are known, and where all four are known, predicted
    speedups.
    """
    # seconds per step of the host and of the device, by arm
    known: dict[str, tuple[float, float]] = {}
    for arm in ARMS:
        host_s, device_s = of_arm(result.host_step_s, arm), of_arm(result.device_step_s, arm)
        step_s = of_arm(result.step_s, arm)
        if host_s and device_s and step_s:
            known[arm] = find_host_s(host_s, device_s, step_s), device_s
    share = PerArm(**{arm: host_s / device_s for arm, (host_s, device_s) in known.items()})
    faster = slower = None
    if len(known) == len(ARMS):
        both = known["eager"] + known["compiled"]
        faster, slower = predict_speedup(*both, 0.5), predict_speedup(*both, 2.0)
    return replace(
        result, host_share=share, speedup_host_2x_faster=faster, speedup_host_2x_slower=slower
    )


def _add_missing(result: Result, record: Record) -> Result:
    """Add why figures are missing; a CPU lacks them by nature."""
    if record.trial.device == "cpu":
        return result
    of_time, of_memory = [], []
    for process in record.processes:
        if process.device_time_missing and result.device_speedup is None:
            of_time.append(process.device_time_missing)
        if process.memory_missing and result.peak_memory_bytes.ratio is None:
            of_memory.append(process.memory_missing)
    return replace(
        result,
        device_time_missing="; ".join(dict.fromkeys(of_time)) or None,
        memory_missing="; ".join(dict.fromkeys(of_memory)) or None,
    )
