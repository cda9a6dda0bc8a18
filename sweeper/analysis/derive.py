"""A record to its figures: `derive`, with the formulas of speedups, intervals, break-even and host
headroom.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import (
    ARMS,
    MAX_VOID_ROUNDS,
    READ_LOADER,
    SAVED_FILE,
    Accuracy,
    Process,
    Record,
)

from .metrics import METRICS
from .result import Result
from .stats import Estimate, group_by_draw, mean_over_draws, median_of

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
    measured: list[_Measured] = []
    for process in record.processes:
        eager_s, compiled_s = process.step_s("eager"), process.step_s("compiled")
        if eager_s is not None and compiled_s is not None:
            measured.append(_Measured(process, {"eager": eager_s, "compiled": compiled_s}))
    is_right = record.status == "ok" and bool(measured)
    readings: dict[str, float] = {}
    for metric in METRICS:
        if metric.of_process and (is_right or not metric.needs_ok):
            value = metric.read(record.processes)
            if value is not None:
                readings[metric.name] = value
    result = _describe_any_status(record, measured, readings)
    if not is_right:
        return result
    result = replace(result, **_describe_speedups(record, measured))
    return replace(
        result,
        **_describe_break_even(result),
        **_describe_headroom(result),
        **_explain_missing(record, result),
    )


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


def break_even_steps(
    compile_s: float | None, eager_s: float | None, compiled_s: float | None
) -> float | None:
    """Return the steps after which compiling has paid: compile_s / (eager_s - compiled_s); None
    when it never does.
    """
    if compile_s is None or not eager_s or not compiled_s or compiled_s >= eager_s:
        return None
    return max(compile_s, 0.0) / (eager_s - compiled_s)


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


@dataclass(frozen=True, slots=True)
class _Measured:
    """A process in which both arms were timed: median wall seconds per step over the rounds that
    count.
    """

    process: Process
    step_s: Mapping[str, float]  # by arm

    def log_speedup(self) -> float:
        return math.log(self.step_s["eager"] / self.step_s["compiled"])

    def log_device_speedup(self) -> float | None:
        times = self.process.device_step_s
        if times and times.eager and times.compiled:
            return math.log(times.eager / times.compiled)
        return None

    def log_loop_speedup(self) -> float | None:
        eager, compiled = map(self.process.read_loop, ARMS)
        return math.log(eager.step_s / compiled.step_s) if eager and compiled else None


def _describe_any_status(
    record: Record, measured: Sequence[_Measured], readings: Mapping[str, float]
) -> Result:
    """Compute the figures that a trial has whatever its status is."""
    diagnostics = record.diagnostics
    eager = _estimate_step(measured, "eager")
    programs = {
        (process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes
    }
    result = Result(
        processes=len(measured),
        draws=len({item.process.draw for item in measured}),
        eager_step_s=eager.ratio if eager else None,
        artifacts=len(programs - {(None, None)}) or None,
        seen_of_script=next(filter(None, (process.script for process in record.processes)), None),
        is_void_by_script=_is_void_by_script(record),
        readings=readings,
    )
    if diagnostics is None:
        return result
    graph_breaks = sum(item.count for item in diagnostics.graph_breaks)
    return replace(result, graph_breaks=graph_breaks, recompiles=diagnostics.recompiles)


def _is_void_by_script(record: Record) -> bool:
    rounds = record.processes[-1].rounds if record.processes else ()
    reasons = [item.void for item in rounds if item.void][-MAX_VOID_ROUNDS:]
    return (
        record.status == "runtime_error"
        and len(reasons) == MAX_VOID_ROUNDS
        and rounds[-1].void is not None
        and {READ_LOADER, SAVED_FILE}.issuperset(reasons)
    )


def _describe_speedups(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    """Compute step times and throughput, and speedups by the wall clock, of the device, and of a
    script's loop.
    """
    waiting = {arm: _find_waiting_fraction(measured, arm) for arm in ARMS}
    shares = [share for share in waiting.values() if share is not None]
    bound = [arm for arm in ARMS if (waiting[arm] or 0.0) > HOST_BOUND]
    compiled = _estimate_step(measured, "compiled", "compiled" in bound)
    wall = _estimate(measured, _Measured.log_speedup, bool(bound))
    assert compiled is not None
    assert wall is not None
    figures: dict[str, Any] = {
        "compiled_step_s": compiled.ratio,
        "host_bound_fraction": max(shares, default=None),
        "compiled_waits_fraction": waiting["compiled"],
        "eager_estimate": _estimate_step(measured, "eager", "eager" in bound),
        "compiled_estimate": compiled,
    }
    if bound:
        figures["host_bound_arms"] = bound[0] if len(bound) == 1 else "both"
    if record.trial.workload != SCRIPT:
        samples = record.trial.replace_batch_size(record.batch_size).samples_per_step
        figures["samples_per_s"] = samples / compiled.ratio
    tokens = measured[0].process.tokens_per_step
    if tokens:
        figures["tokens_per_s"] = tokens / compiled.ratio
    if len(measured) > 1:
        ratios = [math.exp(item.log_speedup()) for item in measured]
        figures |= {"speedup_min": min(ratios), "speedup_max": max(ratios)}
    if wall.variance is not None:
        draws = len({item.process.draw for item in measured})
        figures["interval"] = "draws" if draws >= MIN_DRAWS_FOR_INTERVAL else "processes"
    device = _estimate(measured, _Measured.log_device_speedup)
    loop = _estimate(measured, _Measured.log_loop_speedup)
    for prefix, estimate in (("", wall), ("device_", device), ("loop_", loop)):
        if estimate:
            figures |= {f"{prefix}estimate": estimate, f"{prefix}speedup": estimate.ratio}
            bounds = estimate.interval()
            if bounds:
                figures[f"{prefix}speedup_low"] = bounds.low
                figures[f"{prefix}speedup_high"] = bounds.high
    return figures


def _find_waiting_fraction(measured: Sequence[_Measured], arm: str) -> float | None:
    """Find the share of an arm's wall time in which the device waits for the host, beyond its own
    gaps, or the usual gaps where the device step time is unknown; the median over processes.
    """
    shares = []
    for item in measured:
        names = ("device_step_s", "device_time_s", "device_kernels")
        device_s, busy_s, kernels = (item.process.read_arm(name, arm) for name in names)
        if device_s is None and busy_s is not None and kernels is not None:
            device_s = busy_s + kernels * USUAL_GAP_S
        if device_s is not None:
            shares.append(max(0.0, 1 - device_s / item.step_s[arm]))
    return median_of(shares)


def _estimate_step(
    measured: Sequence[_Measured], arm: str, is_host_bound: bool = False
) -> Estimate | None:
    """Estimate log seconds per step as the speedup is estimated, so that the ratio of the arms is
    the speedup.
    """
    return _estimate(measured, lambda item: math.log(item.step_s[arm]), is_host_bound)


def _estimate(
    measured: Sequence[_Measured],
    read_log: Callable[[_Measured], float | None],
    is_host_bound: bool = False,
) -> Estimate | None:
    """Estimate the mean log over processes, or over draws where there are enough: each draw tunes
    kernels anew.

    A host-bound mean over few processes gets no variance, and so no interval: the range of
    processes is shown.
    """
    groups = group_by_draw((item.process.draw, read_log(item)) for item in measured)
    if not groups:
        return None
    estimate = mean_over_draws(groups, len(groups) >= MIN_DRAWS_FOR_INTERVAL)
    if is_host_bound and len(measured) < MIN_PROCESSES_IF_HOST_BOUND:
        return Estimate(estimate.log, count=estimate.count)
    return estimate


def _describe_break_even(result: Result) -> dict[str, Any]:
    """Compute break-even with the eager step time and the speedup, or an end of its interval; of
    scripts by loop.
    """
    eager_s, prefix = result.eager_step_s, ""
    if result.loop_speedup is not None:
        eager_s, prefix = result.readings["eager_loop_step_s"], "loop_"
    assert eager_s is not None
    figures = {}
    for end, bound in (("", "speedup"), ("_low", "speedup_high"), ("_high", "speedup_low")):
        speedup = getattr(result, f"{prefix}{bound}")
        compiled_s = eager_s / speedup if speedup else None
        for cache, name in (("cold", "break_even_steps"), ("warm", "break_even_warm_steps")):
            compile_s = result.readings.get(f"compile_{cache}_s")
            figures[f"{name}{end}"] = break_even_steps(compile_s, eager_s, compiled_s)
    return figures


def _describe_headroom(result: Result) -> dict[str, Any]:
    """Compute the shares of arms whose two times are known, and where all four are known, predicted
    speedups.
    """
    figures = {}
    # seconds per step of the host and of the device, by arm
    known: dict[str, tuple[float, float]] = {}
    for arm in ARMS:
        host_s = result.readings.get(f"{arm}_host_step_s")
        device_s = result.readings.get(f"{arm}_device_step_s")
        if host_s and device_s:
            host_s = find_host_s(host_s, device_s, getattr(result, f"{arm}_step_s"))
            figures[f"{arm}_host_share"] = host_s / device_s
            known[arm] = host_s, device_s
    if len(known) == len(ARMS):
        both = known["eager"] + known["compiled"]
        figures["speedup_host_2x_faster"] = predict_speedup(*both, 0.5)
        figures["speedup_host_2x_slower"] = predict_speedup(*both, 2.0)
    return figures


def _explain_missing(record: Record, result: Result) -> dict[str, Any]:
    """Join the reasons of processes for figures that the trial lacks; a CPU has neither figure by
    nature.
    """
    missing = []
    if result.device_speedup is None:
        missing.append("device_time_missing")
    if any(f"{arm}_peak_memory_bytes" not in result.readings for arm in ARMS):
        missing.append("memory_missing")
    explained = {}
    for name in missing:
        reasons = dict.fromkeys(getattr(process, name) for process in record.processes)
        if any(reasons) and record.trial.device != "cpu":
            explained[name] = "; ".join(filter(None, reasons))
    return explained
