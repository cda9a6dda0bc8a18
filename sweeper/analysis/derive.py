"""A record to its figures: `derive`, with the formulas of speedups, intervals, break-even and host
headroom, and the share of waiting from which an arm is host-bound.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter, methodcaller
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

from .metrics import METRICS, read_loop_step_s
from .result import Result
from .stats import Estimate, group_logs_by_draw, mean_over_draws, median_of

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


def predict_loop_speedup(result: Result) -> float | None:
    """Predict the speedup of a script's loop by Amdahl's law: steps become as much faster as in the
    rounds, the loop waits longer for its loader where it was seen to, and the rest takes as long.

    None where it is not known, and where the compiled loop had several shapes, compiled again, or
    had other events than eager's: the rounds show nothing of these.
    """
    seen, speedup, loop_s = result.seen_of_script, result.speedup, result.eager_loop_step_s
    run = seen.loop_compiled if seen else None
    if not (seen and run and speedup and loop_s and result.eager_step_s and result.loop_speedup):
        return None
    if seen.num_shapes > 1 or run.recompiles or run.left_out:
        return None
    saved = min(result.eager_step_s / loop_s, 1.0) * (1 - 1 / speedup)
    # as shares of the eager loop; eager may wait while its device computes
    wait = (result.compiled_loader_share or 0.0) / result.loop_speedup
    return 1 / (1 - saved + max(wait - (result.eager_loader_share or 0.0), 0.0))


def read_speedup(process: Process) -> float | None:
    """Return the speedup of a process by the wall clock; None where an arm was not timed."""
    return _divide(process.step_s)


def _read_device_speedup(process: Process) -> float | None:
    return _divide(partial(process.read_arm, "device_step_s"))


def _read_loop_speedup(process: Process) -> float | None:
    return _divide(lambda arm: read_loop_step_s(arm, process))


def _divide(read_s: Callable[[str], float | None]) -> float | None:
    """Divide the seconds of the eager arm by those of the compiled arm."""
    eager_s, compiled_s = map(read_s, ARMS)
    if not eager_s or not compiled_s:
        return None
    return eager_s / compiled_s


def _describe_any_status(
    record: Record, measured: Sequence[Process], readings: Mapping[str, float]
) -> Result:
    """Compute the figures that a trial has whatever its status is."""
    eager = _estimate_step(measured, "eager")
    programs = {
        (process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes
    }
    found = record.diagnostics
    return Result(
        processes=len(measured),
        draws=len({process.draw for process in measured}),
        eager_step_s=eager.ratio if eager else None,
        artifacts=len(programs - {(None, None)}) or None,
        seen_of_script=next(filter(None, (process.script for process in record.processes)), None),
        is_void_by_script=_is_void_by_script(record),
        graph_breaks=sum(map(attrgetter("count"), found.graph_breaks)) if found else None,
        recompiles=found.recompiles if found else None,
        readings=readings,
    )


def _is_void_by_script(record: Record) -> bool:
    if record.status != "runtime_error" or not record.processes:
        return False
    rounds = record.processes[-1].rounds
    reasons = [item.void for item in rounds if item.void][-MAX_VOID_ROUNDS:]
    return (
        len(reasons) == MAX_VOID_ROUNDS
        and rounds[-1].void is not None
        and {READ_LOADER, SAVED_FILE}.issuperset(reasons)
    )


def _describe_speedups(record: Record, measured: Sequence[Process]) -> dict[str, Any]:
    """Compute step times and throughput, and speedups by the wall clock, of the device, and of a
    script's loop.
    """
    waiting: dict[str, float] = {}  # where it is known
    for arm in ARMS:
        share = _find_waiting_fraction(measured, arm)
        if share is not None:
            waiting[arm] = share
    bound = [arm for arm, share in waiting.items() if share > HOST_BOUND]
    compiled = _estimate_step(measured, "compiled", "compiled" in bound)
    draws = _group_logs(measured, read_speedup)
    wall = _estimate(draws, bool(bound))
    assert compiled is not None
    assert wall is not None
    figures: dict[str, Any] = {
        "compiled_step_s": compiled.ratio,
        "host_bound_fraction": max(waiting.values(), default=None),
        "compiled_waits_fraction": waiting.get("compiled"),
        "eager_estimate": _estimate_step(measured, "eager", "eager" in bound),
        "compiled_estimate": compiled,
    }
    if bound:
        figures["host_bound_arms"] = bound[0] if len(bound) == 1 else "both"
    if record.trial.workload != SCRIPT:
        samples = record.trial.replace_batch_size(record.batch_size).samples_per_step
        figures["samples_per_s"] = samples / compiled.ratio
    tokens = measured[0].tokens_per_step
    if tokens:
        figures["tokens_per_s"] = tokens / compiled.ratio
    if len(measured) > 1:
        ratios = list(map(math.exp, chain.from_iterable(draws)))
        figures |= {"speedup_min": min(ratios), "speedup_max": max(ratios)}
    if wall.variance is not None:
        figures["interval"] = "draws" if len(draws) >= MIN_DRAWS_FOR_INTERVAL else "processes"
    device = _estimate(_group_logs(measured, _read_device_speedup))
    loop = _estimate(_group_logs(measured, _read_loop_speedup))
    for prefix, estimate in (("", wall), ("device_", device), ("loop_", loop)):
        if estimate:
            figures |= {f"{prefix}estimate": estimate, f"{prefix}speedup": estimate.ratio}
            bounds = estimate.interval()
            if bounds:
                figures[f"{prefix}speedup_low"], figures[f"{prefix}speedup_high"] = bounds
    return figures


def _find_waiting_fraction(measured: Sequence[Process], arm: str) -> float | None:
    """Find the share of an arm's wall time in which the device waits for the host, beyond its own
    gaps, or the usual gaps where the device step time is unknown; the median over processes.
    """
    shares = []
    for process in measured:
        step_s, device_s = process.step_s(arm), process.read_arm("device_step_s", arm)
        busy_s = process.read_arm("device_time_s", arm)
        kernels = process.read_arm("device_kernels", arm)
        if device_s is None and busy_s is not None and kernels is not None:
            device_s = busy_s + kernels * USUAL_GAP_S
        if device_s is not None and step_s:
            shares.append(max(0.0, 1 - device_s / step_s))
    return median_of(shares)


def _estimate_step(
    measured: Sequence[Process], arm: str, is_host_bound: bool = False
) -> Estimate | None:
    """Estimate log seconds per step as the speedup is estimated, so that the ratio of the arms is
    the speedup.
    """
    return _estimate(_group_logs(measured, methodcaller("step_s", arm)), is_host_bound)


def _group_logs(
    measured: Sequence[Process], read: Callable[[Process], float | None]
) -> list[list[float]]:
    return group_logs_by_draw((process.draw, read(process)) for process in measured)


def _estimate(draws: Sequence[Sequence[float]], is_host_bound: bool = False) -> Estimate | None:
    """Estimate the mean log over processes, or over draws where there are enough: each draw tunes
    kernels anew.

    A host-bound mean over few processes gets no variance, and so no interval: the range of
    processes is shown.
    """
    if not draws:
        return None
    estimate = mean_over_draws(draws, len(draws) >= MIN_DRAWS_FOR_INTERVAL)
    if is_host_bound and sum(map(len, draws)) < MIN_PROCESSES_IF_HOST_BOUND:
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
        reasons = dict.fromkeys(map(attrgetter(name), record.processes))
        if any(reasons) and record.trial.device != "cpu":
            explained[name] = "; ".join(filter(None, reasons))
    return explained
