"""A result: the figures that follow from a record, computed in one place for tables, MLflow and the terminal.

Place in the flow: `Record -> Result`. Figures that do not exist are None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sweeper.analysis.stats import Estimate, group_by_draw, mean_over_draws
from sweeper.core.record import ARMS, Accuracy, Latency, PerArm, Process, Record

DRAWS_FOR_AN_INTERVAL = 3  # with fewer compile caches, an interval speaks of the compiled artifacts at hand
# Between two kernels that follow each other without waiting for the host: 0.6 to 1.5 us, typically 1.1, in the arms of
# six models on an H200 (docs/results/h200-repeatability.md).
USUAL_GAP_S = 1.2e-6
HOST_BOUND = 0.05  # an arm is host-bound when its device waits for the host for a larger share of wall time
# Host noise may have two humps, and few processes all lie in one of them: docs/results/coverage.md.
PROCESSES_IF_HOST_BOUND = 5


@dataclass(frozen=True, slots=True)
class Result:
    """Speedups are eager / compiled; times are wall seconds; memory is bytes on the device."""

    processes: int
    draws: int
    interval: str = "none"  # none, processes or draws: what the interval is taken over
    estimate: Estimate | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_min: float | None = None  # of the processes, from two on
    speedup_max: float | None = None
    device_estimate: Estimate | None = None
    device_speedup: float | None = None
    device_speedup_low: float | None = None
    device_speedup_high: float | None = None
    host_bound_fraction: float | None = None  # of wall time; the larger one of the two arms
    host_bound_arms: str | None = None  # eager, compiled, both; None: neither, or unknown
    eager_step_s: float | None = None
    compiled_step_s: float | None = None
    samples_per_s: float | None = None
    compile_cold_s: float | None = None
    compile_warm_s: float | None = None
    compile_dynamo_s: float | None = None
    compile_aot_autograd_s: float | None = None
    compile_inductor_s: float | None = None
    compile_autotuning_s: float | None = None
    first_step_cold_s: float | None = None  # from the start of the process
    first_step_warm_s: float | None = None
    break_even_steps: float | None = None
    break_even_steps_low: float | None = None
    break_even_steps_high: float | None = None  # None beside a `low`: perhaps never
    break_even_warm_steps: float | None = None
    break_even_warm_steps_low: float | None = None
    break_even_warm_steps_high: float | None = None
    eager_peak_memory_bytes: float | None = None
    compiled_peak_memory_bytes: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    artifacts: int | None = None  # different compiled programs over the processes
    tokens_per_s: float | None = None  # of the compiled arm, of models that read text
    eager_p50_s: float | None = None  # of single steps, each waited for
    eager_p90_s: float | None = None
    eager_p99_s: float | None = None
    compiled_p50_s: float | None = None
    compiled_p90_s: float | None = None
    compiled_p99_s: float | None = None
    eager_energy_j: float | None = None  # of the whole GPU, a step
    compiled_energy_j: float | None = None
    # Of log seconds a step, to compare trials of one eager step; no variance where host noise allows none.
    eager_estimate: Estimate | None = None
    compiled_estimate: Estimate | None = None
    compiled_waits_fraction: float | None = None  # of the compiled arm's wall time, for the host


def derive(record: Record) -> Result:
    """The result of a record. Speedups and what needs them only for status `ok`: a wrong program has no speed."""
    measured = [found for process in record.processes if (found := _measured(process))]
    figures = {**_of_any_status(record, measured), **_compile_times(record.processes)}
    if record.status == "ok" and measured:
        figures |= _compiled_arm(record, measured)
        figures |= _speedups(measured, figures["draws"], figures["host_bound_arms"])
        figures |= _break_even(figures)
    return Result(**figures)


def worst_accuracy(record: Record) -> Accuracy | None:
    """The check of the process whose compiled step came nearest to its bound, or went furthest beyond it."""
    return max((item.accuracy for item in record.processes if item.accuracy), key=_share_of_bound, default=None)


def _share_of_bound(accuracy: Accuracy) -> float:
    """Error by bound; infinite where a failed check has no finite error, negative where nothing was compared."""
    error, bound = accuracy.compiled_error, accuracy.bound
    if error is None or bound is None:
        return math.inf if accuracy.passed is False else -1.0
    return error / bound if bound else (math.inf if error else 0.0)


def break_even_steps(compile_s: float | None, eager_s: float | None, compiled_s: float | None) -> float | None:
    """Steps after which compiling has paid: compile_s / (eager_s - compiled_s); None when it never does."""
    if compile_s is None or not eager_s or not compiled_s or compiled_s >= eager_s:
        return None
    return max(compile_s, 0.0) / (eager_s - compiled_s)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A process in which both arms were timed: median wall seconds a step over the rounds that count."""

    process: Process
    eager_s: float
    compiled_s: float

    @property
    def draw(self) -> int:
        return self.process.draw

    @property
    def log_speedup(self) -> float:
        return math.log(self.eager_s / self.compiled_s)

    @property
    def device_log_speedup(self) -> float | None:
        busy = self.process.device_time_s
        return math.log(busy.eager / busy.compiled) if busy and busy.eager and busy.compiled else None

    def waiting(self, arm: str) -> float | None:
        """Share of an arm's wall time in which the device waits for the host: gaps beyond the usual ones."""
        busy_s, kernels = (
            _of_arm(figures, arm) for figures in (self.process.device_time_s, self.process.device_kernels)
        )
        if busy_s is None or kernels is None:
            return None
        wall_s: float = getattr(self, f"{arm}_s")
        return max(0.0, 1 - (busy_s + kernels * USUAL_GAP_S) / wall_s)


def _measured(process: Process) -> _Measured | None:
    eager_s, compiled_s = (process.step_s(arm) for arm in ARMS)
    return _Measured(process, eager_s, compiled_s) if eager_s and compiled_s else None


def _of_any_status(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    """What is true of a trial that failed as well, as fields of a Result; so are the figures of the next functions."""
    diagnostics = record.diagnostics
    prints = [(process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes]
    return dict(
        processes=len(measured),
        draws=len({item.draw for item in measured}),
        eager_step_s=_typical_s(measured, "eager"),
        eager_peak_memory_bytes=_median(_of_arm(process.memory_bytes, "eager") for process in record.processes),
        compiled_peak_memory_bytes=_median(_of_arm(process.memory_bytes, "compiled") for process in record.processes),
        graph_breaks=sum(item.count for item in diagnostics.graph_breaks) if diagnostics else None,
        recompiles=diagnostics.recompiles if diagnostics else None,
        artifacts=len({pair for pair in prints if any(pair)}) or None,
        eager_energy_j=_median(_of_arm(process.energy_j, "eager") for process in record.processes),
        **_percentiles(record.processes, "eager"),
    )


def _percentiles(processes: Sequence[Process], arm: str) -> dict[str, Any]:
    """Medians over processes, as fields of a Result."""
    found: list[Latency] = [getattr(process.latencies, arm) for process in processes if process.latencies]
    return {f"{arm}_{name}": _median(getattr(item, name) for item in found) for name in ("p50_s", "p90_s", "p99_s")}


def _compile_times(processes: Sequence[Process]) -> dict[str, Any]:
    """Medians over the processes that had an empty cache, and over those that found it filled."""
    cold = [process for process in processes if process.cold]
    warm = [process for process in processes if not process.cold]
    return {
        "compile_cold_s": _median(process.compile_s for process in cold),
        "compile_warm_s": _median(process.compile_s for process in warm),
        "compile_dynamo_s": _median(process.compile_parts_s.get("dynamo") for process in cold),
        "compile_aot_autograd_s": _median(process.compile_parts_s.get("aot_autograd") for process in cold),
        "compile_inductor_s": _median(process.compile_parts_s.get("inductor") for process in cold),
        "compile_autotuning_s": _median(process.compile_parts_s.get("autotuning") for process in cold),
        "first_step_cold_s": _median(process.time_to_first_step_s for process in cold),
        "first_step_warm_s": _median(process.time_to_first_step_s for process in warm),
    }


def _compiled_arm(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    compiled_s = _typical_s(measured, "compiled") or 0.0
    waiting = {arm: _median(item.waiting(arm) for item in measured) for arm in ARMS}
    bound = [arm for arm, share in waiting.items() if share is not None and share > HOST_BOUND]
    return dict(
        compiled_step_s=compiled_s,
        samples_per_s=record.trial.replace_batch_size(record.batch_size).samples_per_step / compiled_s,
        tokens_per_s=tokens / compiled_s if (tokens := measured[0].process.tokens_per_step) else None,
        compiled_energy_j=_median(_of_arm(process.energy_j, "compiled") for process in record.processes),
        **_percentiles(record.processes, "compiled"),
        host_bound_fraction=max((share for share in waiting.values() if share is not None), default=None),
        host_bound_arms="both" if len(bound) > 1 else bound[0] if bound else None,
        eager_estimate=_step_estimate(measured, "eager", "eager" in bound),
        compiled_estimate=_step_estimate(measured, "compiled", "compiled" in bound),
        compiled_waits_fraction=waiting["compiled"],
    )


def _speedups(measured: Sequence[_Measured], draws: int, host_bound_arms: str | None) -> dict[str, Any]:
    """Wall clock and device. A host-bound trial of few processes has the range of its processes and no interval."""
    estimate = _estimate([(item.draw, item.log_speedup) for item in measured])
    if estimate and host_bound_arms and len(measured) < PROCESSES_IF_HOST_BOUND:
        estimate = Estimate(estimate.log, count=estimate.count)
    device = _estimate([(item.draw, item.device_log_speedup) for item in measured])
    bounds, device_bounds = (found.interval() if found else None for found in (estimate, device))
    several = [math.exp(item.log_speedup) for item in measured] if len(measured) > 1 else []
    return {
        "interval": "none" if bounds is None else "draws" if draws >= DRAWS_FOR_AN_INTERVAL else "processes",
        "estimate": estimate,
        "speedup": estimate.ratio if estimate else None,
        "speedup_low": bounds.low if bounds else None,
        "speedup_high": bounds.high if bounds else None,
        "speedup_min": min(several, default=None),
        "speedup_max": max(several, default=None),
        "device_estimate": device,
        "device_speedup": device.ratio if device else None,
        "device_speedup_low": device_bounds.low if device_bounds else None,
        "device_speedup_high": device_bounds.high if device_bounds else None,
    }


def _typical_s(measured: Sequence[_Measured], arm: str) -> float | None:
    """Seconds a step: the mean that the speedup is taken by, so that the ratio of the arms' is the speedup."""
    groups = group_by_draw((item.draw, math.log(getattr(item, f"{arm}_s"))) for item in measured)
    if not groups:
        return None
    if len(groups) >= DRAWS_FOR_AN_INTERVAL:
        return math.exp(fmean(map(fmean, groups)))
    return math.exp(fmean(log for group in groups for log in group))


def _step_estimate(measured: Sequence[_Measured], arm: str, host_bound: bool) -> Estimate | None:
    """Of log seconds a step; an arm that waits for the host has no variance, as its speedup has none."""
    estimate = _logs_of_steps(measured, arm)
    if estimate and host_bound and len(measured) < PROCESSES_IF_HOST_BOUND:
        return Estimate(estimate.log, count=estimate.count)
    return estimate


def _logs_of_steps(measured: Sequence[_Measured], arm: str) -> Estimate | None:
    return _estimate([(item.draw, math.log(getattr(item, f"{arm}_s"))) for item in measured])


def _estimate(logs: Iterable[tuple[int, float | None]]) -> Estimate | None:
    """From the draw and the log ratio of each process. Kernels are raced anew in each draw: of enough, draws vary."""
    groups = group_by_draw(logs)
    return mean_over_draws(groups, len(groups) >= DRAWS_FOR_AN_INTERVAL) if groups else None


def _break_even(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Break-even with the eager step time and the printed speedup, whose bounds are its bounds."""
    eager_s = figures["eager_step_s"]

    def steps(compile_s: float | None, speedup: float | None) -> float | None:
        return break_even_steps(compile_s, eager_s, eager_s / speedup if eager_s and speedup else None)

    cold_s, warm_s = figures["compile_cold_s"], figures["compile_warm_s"]
    speedup, low, high = (figures[name] for name in ("speedup", "speedup_low", "speedup_high"))
    return {
        "break_even_steps": steps(cold_s, speedup),
        "break_even_steps_low": steps(cold_s, high),
        "break_even_steps_high": steps(cold_s, low),
        "break_even_warm_steps": steps(warm_s, speedup),
        "break_even_warm_steps_low": steps(warm_s, high),
        "break_even_warm_steps_high": steps(warm_s, low),
    }


def _of_arm(figures: PerArm | None, arm: str) -> float | None:
    value: float | None = getattr(figures, arm) if figures else None
    return value


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
