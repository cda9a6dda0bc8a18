"""A record to its figures: `derive`, with the formulas of speedups, intervals, break-even and host
headroom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.analysis.metrics import METRICS
from sweeper.analysis.result import Result
from sweeper.analysis.stats import Estimate, group_by_draw, mean_over_draws, median_of
from sweeper.core.libraries import SCRIPT
from sweeper.core.record import (
    ARMS,
    MAX_VOID_ROUNDS,
    READ_LOADER,
    SAVED_FILE,
    Accuracy,
    PerArm,
    Process,
    Record,
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
    steps_s = (
        {arm: time_s for arm in ARMS if (time_s := process.step_s(arm))}
        for process in record.processes
    )
    timed = zip(record.processes, steps_s, strict=True)
    measured = [_Measured(process, step_s) for process, step_s in timed if len(step_s) == len(ARMS)]
    is_right = record.status == "ok" and bool(measured)
    readings = {
        metric.name: value
        for metric in METRICS
        if metric.of_process and (is_right or not metric.needs_ok)
        if (value := metric.read(record.processes)) is not None
    }
    figures = _describe_any_status(record, measured)
    if is_right:
        figures |= _describe_compiled_arm(record, measured)
        figures |= _describe_speedups(measured, figures["draws"], bool(figures["host_bound_arms"]))
        figures |= _describe_break_even(figures, readings)
        figures |= _describe_headroom(figures, readings)
        figures |= _explain_missing(record, figures, readings)
    return Result(**figures, readings=readings)


def find_worst_accuracy(record: Record) -> Accuracy | None:
    """Return the check of the process whose compiled step came nearest to its bound, or went
    furthest beyond it.
    """

    def share_of_bound(accuracy: Accuracy) -> float:
        error, bound = accuracy.compiled_error, accuracy.bound
        # a failed check without a finite error, or nothing was compared
        if error is None or bound is None:
            return math.inf if accuracy.passed is False else -1.0
        return error / bound if bound else (math.inf if error else 0.0)

    found = (item.accuracy for item in record.processes if item.accuracy)
    return max(
        found,
        key=lambda accuracy: (accuracy.passed is False, share_of_bound(accuracy)),
        default=None,
    )


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
    return step_s if step_s > MIN_WAITING * device_s else min(host_s, step_s)


def predict_step_s(host_s: float, device_s: float, host_slowdown: float) -> float:
    """Predict the wall seconds of a step where the host takes `host_slowdown` times as long for it
    as here.

    Host and device work side by side, so the slower of the two decides.
    """
    return max(host_s * host_slowdown, device_s)


def predict_speedup(
    eager_host_s: float,
    eager_device_s: float,
    compiled_host_s: float,
    compiled_device_s: float,
    host_slowdown: float,
) -> float:
    """Predict the speedup where the host takes `host_slowdown` times as long for a step as here, in
    both arms.
    """
    eager_s = predict_step_s(eager_host_s, eager_device_s, host_slowdown)
    return eager_s / predict_step_s(compiled_host_s, compiled_device_s, host_slowdown)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A process in which both arms were timed: median wall seconds per step over the rounds that
    count.
    """

    process: Process
    step_s: Mapping[str, float]  # by arm

    @property
    def log_speedup(self) -> float:
        return math.log(self.step_s["eager"] / self.step_s["compiled"])

    @property
    def device_log_speedup(self) -> float | None:
        return _log_ratio(self.process.device_step_s)

    @property
    def loop_log_speedup(self) -> float | None:
        eager, compiled = (self.process.read_loop(arm) for arm in ARMS)
        return math.log(eager.step_s / compiled.step_s) if eager and compiled else None

    def waiting_fraction(self, arm: str) -> float | None:
        """Compute the share of an arm's wall time in which the device waits for the host, beyond
        its own gaps, or the usual gaps where the device step time is unknown.
        """
        fields = ("device_step_s", "device_time_s", "device_kernels")
        device_s, busy_s, kernels = (self.process.read_arm(name, arm) for name in fields)
        if device_s is None and busy_s is not None and kernels is not None:
            device_s = busy_s + kernels * USUAL_GAP_S
        return None if device_s is None else max(0.0, 1 - device_s / self.step_s[arm])


def _log_ratio(times: PerArm | None) -> float | None:
    return (
        math.log(times.eager / times.compiled) if times and times.eager and times.compiled else None
    )


def _describe_any_status(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    """Compute the fields of a Result that a trial has whatever its status is."""
    diagnostics = record.diagnostics
    prints = {
        (process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes
    }
    eager = _estimate_step(measured, "eager")
    return {
        "processes": len(measured),
        "draws": len({item.process.draw for item in measured}),
        "eager_step_s": eager.ratio if eager else None,
        "graph_breaks": sum(item.count for item in diagnostics.graph_breaks)
        if diagnostics
        else None,
        "recompiles": diagnostics.recompiles if diagnostics else None,
        "artifacts": len({pair for pair in prints if any(pair)}) or None,
        "seen_of_script": next(
            (process.script for process in record.processes if process.script), None
        ),
        "is_void_by_script": _is_void_by_script(record),
    }


def _is_void_by_script(record: Record) -> bool:
    rounds = record.processes[-1].rounds if record.processes else ()
    reasons = [item.void for item in rounds if item.void][-MAX_VOID_ROUNDS:]
    ended = (
        record.status == "runtime_error"
        and len(reasons) == MAX_VOID_ROUNDS
        and rounds[-1].void is not None
    )
    return ended and {READ_LOADER, SAVED_FILE}.issuperset(reasons)


def _explain_missing(
    record: Record, figures: Mapping[str, Any], readings: Mapping[str, float]
) -> dict[str, str | None]:
    """Join the reasons of processes for figures that the trial lacks; a CPU has neither figure by
    nature.
    """
    lacking = {
        "device_time_missing": figures["device_speedup"] is None,
        "memory_missing": any(f"{arm}_peak_memory_bytes" not in readings for arm in ARMS),
    }
    reasons = {
        name: dict.fromkeys(
            reason for process in record.processes if (reason := getattr(process, name))
        )
        for name, is_lacking in lacking.items()
        if is_lacking and record.trial.device != "cpu"
    }
    return {name: "; ".join(found) or None for name, found in reasons.items()}


def _describe_compiled_arm(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    waiting = {arm: median_of(item.waiting_fraction(arm) for item in measured) for arm in ARMS}
    bound = [arm for arm, share in waiting.items() if share is not None and share > HOST_BOUND]
    eager, compiled = (_estimate_step(measured, arm, arm in bound) for arm in ARMS)
    assert compiled is not None
    return {
        "compiled_step_s": compiled.ratio,
        "samples_per_s": None
        if record.trial.workload == SCRIPT
        else _samples_per_step(record) / compiled.ratio,
        "tokens_per_s": tokens / compiled.ratio
        if (tokens := measured[0].process.tokens_per_step)
        else None,
        "host_bound_fraction": max(
            (share for share in waiting.values() if share is not None), default=None
        ),
        "host_bound_arms": "both" if len(bound) > 1 else bound[0] if bound else None,
        "eager_estimate": eager,
        "compiled_estimate": compiled,
        "compiled_waits_fraction": waiting["compiled"],
    }


def _samples_per_step(record: Record) -> float:
    return record.trial.replace_batch_size(record.batch_size).samples_per_step


def _describe_speedups(
    measured: Sequence[_Measured], draws: int, is_host_bound: bool
) -> dict[str, Any]:
    """Compute speedups by the wall clock, of the device, and of a script's loop."""
    estimate = _estimate(measured, [item.log_speedup for item in measured], is_host_bound)
    wall = _describe_speedup("", estimate)
    several = [math.exp(item.log_speedup) for item in measured] if len(measured) > 1 else []
    return {
        "interval": "none"
        if wall["speedup_low"] is None
        else "draws"
        if draws >= MIN_DRAWS_FOR_INTERVAL
        else "processes",
        **wall,
        "speedup_min": min(several, default=None),
        "speedup_max": max(several, default=None),
        **_describe_speedup(
            "device_", _estimate(measured, [item.device_log_speedup for item in measured])
        ),
        **_describe_speedup(
            "loop_", _estimate(measured, [item.loop_log_speedup for item in measured])
        ),
    }


def _describe_speedup(prefix: str, estimate: Estimate | None) -> dict[str, Any]:
    bounds = estimate.interval() if estimate else None
    return {
        f"{prefix}estimate": estimate,
        f"{prefix}speedup": estimate.ratio if estimate else None,
        f"{prefix}speedup_low": bounds.low if bounds else None,
        f"{prefix}speedup_high": bounds.high if bounds else None,
    }


def _estimate_step(
    measured: Sequence[_Measured], arm: str, is_host_bound: bool = False
) -> Estimate | None:
    """Estimate log seconds per step as the speedup is estimated, so that the ratio of the arms is
    the speedup.
    """
    return _estimate(measured, [math.log(item.step_s[arm]) for item in measured], is_host_bound)


def _estimate(
    measured: Sequence[_Measured], logs: Sequence[float | None], is_host_bound: bool = False
) -> Estimate | None:
    """Estimate the mean log over processes, or over draws where there are enough: each draw tunes
    kernels anew.

    A host-bound mean over few processes gets no variance, and so no interval: the range of
    processes is shown.
    """
    groups = group_by_draw(
        (item.process.draw, log) for item, log in zip(measured, logs, strict=True)
    )
    if not groups:
        return None
    estimate = mean_over_draws(groups, len(groups) >= MIN_DRAWS_FOR_INTERVAL)
    if is_host_bound and len(measured) < MIN_PROCESSES_IF_HOST_BOUND:
        return Estimate(estimate.log, count=estimate.count)
    return estimate


def _describe_break_even(
    figures: Mapping[str, Any], readings: Mapping[str, float]
) -> dict[str, float | None]:
    """Compute break-even with the eager step time and the speedup, or an end of its interval; of
    scripts by loop.
    """
    loop_s = readings.get("eager_loop_step_s") if figures["loop_speedup"] is not None else None
    eager_s, prefix = (figures["eager_step_s"], "") if loop_s is None else (loop_s, "loop_")
    of_end = {"": "speedup", "_low": "speedup_high", "_high": "speedup_low"}
    ends = {end: figures[f"{prefix}{name}"] for end, name in of_end.items()}
    compile_times = {
        "break_even_steps": "compile_cold_s",
        "break_even_warm_steps": "compile_warm_s",
    }
    return {
        f"{name}{end}": break_even_steps(
            readings.get(compile_time), eager_s, speedup and eager_s / speedup
        )
        for name, compile_time in compile_times.items()
        for end, speedup in ends.items()
    }


def _describe_headroom(
    figures: Mapping[str, Any], readings: Mapping[str, float]
) -> dict[str, float]:
    """Compute the shares of arms whose two times are known, and where all four are known, predicted
    speedups.
    """
    # seconds per step of the host and of the device, by arm
    known: dict[str, tuple[float, float]] = {}
    for arm in ARMS:
        host_s, device_s = (readings.get(f"{arm}_{clock}_step_s") for clock in ("host", "device"))
        if host_s and device_s:
            known[arm] = find_host_s(host_s, device_s, figures[f"{arm}_step_s"]), device_s
    shares = {f"{arm}_host_share": host_s / device_s for arm, (host_s, device_s) in known.items()}
    if len(known) < len(ARMS):
        return shares
    both = *known["eager"], *known["compiled"]
    faster, slower = (predict_speedup(*both, host_slowdown) for host_slowdown in (0.5, 2.0))
    return {**shares, "speedup_host_2x_faster": faster, "speedup_host_2x_slower": slower}
