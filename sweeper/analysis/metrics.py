"""The figures of a trial: `derive` makes a `Result` of a record, and `METRICS` declares what is shown of it where.

A metric that is the median of a reading over processes is one line of `METRICS`; its CSV column, MLflow metric, frame,
line on the page, column for people and line in docs/metrics.md follow from that line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from sweeper.analysis.stats import Estimate, group_by_draw, mean_over_draws
from sweeper.core.record import ARMS, Accuracy, PerArm, Process, Record

DRAWS_FOR_AN_INTERVAL = 3  # with fewer compile caches, an interval speaks of the compiled artifacts at hand
# Between two kernels that follow each other without waiting for the host: 0.6 to 1.5 us, typically 1.1, in the arms of
# six models on an H200 (docs/results/h200-repeatability.md).
USUAL_GAP_S = 1.2e-6
HOST_BOUND = 0.05  # an arm is host-bound when its device waits for the host for a larger share of wall time
# Host noise may have two humps, and few processes all lie in one of them: docs/results/coverage.md.
PROCESSES_IF_HOST_BOUND = 5
MIB = 2**20

Value = None | int | float | str


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a record. Speedups are eager / compiled; times are wall seconds. Missing figures are None."""

    processes: int
    draws: int
    interval: str = "none"  # none, processes or draws: what the interval is taken over
    estimate: Estimate | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_min: float | None = None
    speedup_max: float | None = None
    device_estimate: Estimate | None = None
    device_speedup: float | None = None
    device_speedup_low: float | None = None
    device_speedup_high: float | None = None
    host_bound_fraction: float | None = None
    host_bound_arms: str | None = None  # eager, compiled, both; None: neither, or unknown
    eager_step_s: float | None = None
    compiled_step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    break_even_steps: float | None = None
    break_even_steps_low: float | None = None
    break_even_steps_high: float | None = None  # None beside a `low`: perhaps never
    break_even_warm_steps: float | None = None
    break_even_warm_steps_low: float | None = None
    break_even_warm_steps_high: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    artifacts: int | None = None
    # Of log seconds per step, to compare trials of one eager step; no variance where host noise allows none.
    eager_estimate: Estimate | None = None
    compiled_estimate: Estimate | None = None
    compiled_waits_fraction: float | None = None  # of the compiled arm's wall time, for the host
    readings: Mapping[str, float] = field(default_factory=dict)  # metrics with `of_process`; missing ones are left out


@dataclass(frozen=True)
class Metric:
    """A figure of a trial and where it is shown. The name is that of the MLflow metric and ends in the unit.

    `of_process` reads it of a process, and the metric is the median over the processes for which `counts` holds.
    Without `of_process` it is the field of `Result` of that name.
    """

    name: str
    meaning: str
    of_process: Callable[[Process], float | None] | None = None
    counts: Callable[[Process], bool] = lambda _process: True
    needs_ok: bool = False  # a wrong program has no speed
    kind: type = float
    mlflow: bool = False
    column: str = ""  # of speedups.csv, where its unit is another one
    scale: float = 1.0  # from the unit of `name` to that of `column`
    heading: str = ""  # of the column that people see where the metric is known; "": none

    def read(self, processes: Iterable[Process]) -> float | None:
        """The median over the processes that count."""
        assert self.of_process is not None
        return _median(self.of_process(process) for process in processes if self.counts(process))

    def value(self, result: Result) -> Value:
        """The figure of a result, in the unit of `name`."""
        return result.readings.get(self.name) if self.of_process else getattr(result, self.name)

    def column_value(self, result: Result) -> Value:
        """The figure of a result, in the unit of `column`."""
        value = self.value(result)
        return value * self.scale if self.scale != 1 and isinstance(value, (int, float)) else value


def _is_cold(process: Process) -> bool:
    return process.cold


def _is_warm(process: Process) -> bool:
    return not process.cold


def _of_arm(field_name: str, arm: str) -> Callable[[Process], float | None]:
    """The reading of one arm of a field of `Process` that holds both arms."""

    def read(process: Process) -> float | None:
        per_arm: PerArm | None = getattr(process, field_name)
        return getattr(per_arm, arm) if per_arm else None

    return read


def _compile_part(part: str) -> Metric:
    meaning = f"seconds of compile_cold_s in {part}"
    return Metric(f"compile_{part}_s", meaning, lambda process: process.compile_parts_s.get(part), _is_cold)


def _percentile(arm: str, share: str) -> Metric:
    def read(process: Process) -> float | None:
        return getattr(getattr(process.latencies, arm), f"{share}_s") if process.latencies else None

    meaning = f"{share[1:]}th percentile of single {arm} steps, each waited for, with measure.clock=step"
    name = f"{arm}_{share}"
    ok = arm == "compiled"
    return Metric(f"{name}_s", meaning, read, needs_ok=ok, mlflow=True, column=f"{name}_ms", scale=1e3)


def _peak_memory(arm: str) -> Metric:
    name, meaning = f"{arm}_peak_memory", f"peak device memory of the {arm} arm, less what was in use before the model"
    read = _of_arm("memory_bytes", arm)
    return Metric(f"{name}_bytes", meaning, read, mlflow=True, column=f"{name}_mib", scale=1 / MIB)


def _energy(arm: str) -> Metric:
    meaning = f"joules that the whole GPU uses per {arm} step, with measure.energy=true"
    read = _of_arm("energy_j", arm)
    return Metric(f"{arm}_energy_j", meaning, read, needs_ok=arm == "compiled", mlflow=True)


def _step_time(arm: str) -> Metric:
    meaning = f"wall time per step of the {arm} arm, geometric mean over processes"
    return Metric(f"{arm}_step_s", meaning, mlflow=True, column=f"{arm}_step_ms", scale=1e3)


# In the order of the columns of speedups.csv, which is a contract: new ones go to the end.
METRICS: list[Metric] = [
    Metric("interval", "what the interval is taken over: none, processes (one compiled artifact) or draws", kind=str),
    Metric("speedup", "eager / compiled step time; empty unless the status is ok", mlflow=True),
    Metric("speedup_low", "lower end of its 95 % interval", mlflow=True),
    Metric("speedup_high", "upper end of its 95 % interval", mlflow=True),
    Metric("processes", "processes in which both arms were timed", kind=int),
    Metric("draws", "compile caches of these processes", kind=int),
    Metric("device_speedup", "eager / compiled time per step in which the device is busy", mlflow=True),
    Metric("host_bound_fraction", "share of wall time in which the device waits for the host, in the worse arm"),
    _step_time("eager"),
    _step_time("compiled"),
    Metric("samples_per_s", "samples per second of the compiled arm", mlflow=True),
    Metric(
        "compile_cold_s",
        "extra wall seconds of the first compiled steps with an empty cache",
        lambda process: process.compile_s,
        _is_cold,
        mlflow=True,
    ),
    Metric(
        "compile_warm_s",
        "extra wall seconds of the first compiled steps with a filled cache",
        lambda process: process.compile_s,
        _is_warm,
        mlflow=True,
    ),
    Metric("break_even_steps", "steps after which compiling has paid; empty when it never does", mlflow=True),
    Metric("break_even_warm_steps", "steps after which compiling with a filled cache has paid"),
    _peak_memory("eager"),
    _peak_memory("compiled"),
    Metric("graph_breaks", "graph breaks", kind=int, mlflow=True),
    Metric("recompiles", "recompilations", kind=int, mlflow=True),
    Metric("speedup_min", "smallest speedup of a process, where there are several"),
    Metric("speedup_max", "largest speedup of a process, where there are several"),
    Metric("device_speedup_low", "lower end of the 95 % interval of device_speedup"),
    Metric("device_speedup_high", "upper end of the 95 % interval of device_speedup"),
    Metric("host_bound_arms", "arms whose device waits for the host for more than 5 % of the time", kind=str),
    Metric("break_even_steps_low", "break_even_steps at the upper end of the speedup"),
    Metric("break_even_steps_high", "break_even_steps at the lower end of the speedup; empty: perhaps never"),
    Metric("break_even_warm_steps_low", "break_even_warm_steps at the upper end of the speedup"),
    Metric("break_even_warm_steps_high", "break_even_warm_steps at the lower end of the speedup"),
    Metric(
        "first_step_cold_s",
        "from the start of a process to the end of its first compiled step, with an empty cache",
        lambda process: process.time_to_first_step_s,
        _is_cold,
    ),
    Metric(
        "first_step_warm_s",
        "from the start of a process to the end of its first compiled step, with a filled cache",
        lambda process: process.time_to_first_step_s,
        _is_warm,
    ),
    *(_compile_part(part) for part in ("dynamo", "aot_autograd", "inductor", "autotuning")),
    Metric("artifacts", "different compiled programs that the processes ran", kind=int),
    Metric("tokens_per_s", "tokens per second of the compiled arm, of models that read text", mlflow=True),
    *(_percentile(arm, share) for arm in ARMS for share in ("p50", "p90", "p99")),
    *(_energy(arm) for arm in ARMS),
]


def derive(record: Record) -> Result:
    """Compute the figures of a record. Speedups and what needs them exist only for status `ok`."""
    measured = [found for process in record.processes if (found := _measure(process))]
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
        figures |= _describe_speedups(measured, figures["draws"], figures["host_bound_arms"])
        figures |= _describe_break_even(figures, readings)
    return Result(**figures, readings=readings)


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
    """A process in which both arms were timed: median wall seconds per step over the rounds that count."""

    process: Process
    eager_s: float
    compiled_s: float

    @property
    def log_speedup(self) -> float:
        return math.log(self.eager_s / self.compiled_s)

    @property
    def device_log_speedup(self) -> float | None:
        busy = self.process.device_time_s
        return math.log(busy.eager / busy.compiled) if busy and busy.eager and busy.compiled else None

    def step_s(self, arm: str) -> float:
        return self.eager_s if arm == "eager" else self.compiled_s

    def waiting(self, arm: str) -> float | None:
        """Share of an arm's wall time in which the device waits for the host: gaps beyond the usual ones."""
        busy_s, kernels = _of_arm("device_time_s", arm)(self.process), _of_arm("device_kernels", arm)(self.process)
        if busy_s is None or kernels is None:
            return None
        return max(0.0, 1 - (busy_s + kernels * USUAL_GAP_S) / self.step_s(arm))


def _measure(process: Process) -> _Measured | None:
    eager_s, compiled_s = (process.step_s(arm) for arm in ARMS)
    return _Measured(process, eager_s, compiled_s) if eager_s and compiled_s else None


def _describe_any_status(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    """What is true of a trial that failed as well, as fields of a Result."""
    diagnostics = record.diagnostics
    prints = [(process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes]
    return {
        "processes": len(measured),
        "draws": len({item.process.draw for item in measured}),
        "eager_step_s": _typical_s(measured, "eager"),
        "graph_breaks": sum(item.count for item in diagnostics.graph_breaks) if diagnostics else None,
        "recompiles": diagnostics.recompiles if diagnostics else None,
        "artifacts": len({pair for pair in prints if any(pair)}) or None,
    }


def _describe_compiled_arm(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    compiled_s = _typical_s(measured, "compiled") or 0.0
    waiting = {arm: _median(item.waiting(arm) for item in measured) for arm in ARMS}
    bound = [arm for arm, share in waiting.items() if share is not None and share > HOST_BOUND]
    return {
        "compiled_step_s": compiled_s,
        "samples_per_s": record.trial.replace_batch_size(record.batch_size).samples_per_step / compiled_s,
        "tokens_per_s": tokens / compiled_s if (tokens := measured[0].process.tokens_per_step) else None,
        "host_bound_fraction": max((share for share in waiting.values() if share is not None), default=None),
        "host_bound_arms": "both" if len(bound) > 1 else bound[0] if bound else None,
        "eager_estimate": _estimate_step(measured, "eager", "eager" in bound),
        "compiled_estimate": _estimate_step(measured, "compiled", "compiled" in bound),
        "compiled_waits_fraction": waiting["compiled"],
    }


def _describe_speedups(measured: Sequence[_Measured], draws: int, host_bound_arms: str | None) -> dict[str, Any]:
    """Wall clock and device. A host-bound trial of few processes has the range of its processes and no interval."""
    estimate = _estimate([(item.process.draw, item.log_speedup) for item in measured])
    if estimate and host_bound_arms:
        estimate = _without_variance_of_few(estimate, measured)
    device = _estimate([(item.process.draw, item.device_log_speedup) for item in measured])
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
    """Seconds per step: the mean that the speedup is taken by, so that the ratio of the arms' is the speedup."""
    groups = group_by_draw((item.process.draw, math.log(item.step_s(arm))) for item in measured)
    if not groups:
        return None
    if len(groups) >= DRAWS_FOR_AN_INTERVAL:
        return math.exp(fmean(map(fmean, groups)))
    return math.exp(fmean(log for group in groups for log in group))


def _estimate_step(measured: Sequence[_Measured], arm: str, is_host_bound: bool) -> Estimate | None:
    """Of log seconds per step; an arm that waits for the host has no variance, as its speedup has none."""
    estimate = _estimate([(item.process.draw, math.log(item.step_s(arm))) for item in measured])
    return _without_variance_of_few(estimate, measured) if estimate and is_host_bound else estimate


def _without_variance_of_few(estimate: Estimate, measured: Sequence[_Measured]) -> Estimate:
    return Estimate(estimate.log, count=estimate.count) if len(measured) < PROCESSES_IF_HOST_BOUND else estimate


def _estimate(logs: Iterable[tuple[int, float | None]]) -> Estimate | None:
    """From the draw and the log ratio of each process. Kernels are raced anew in each draw: of enough, draws vary."""
    groups = group_by_draw(logs)
    return mean_over_draws(groups, len(groups) >= DRAWS_FOR_AN_INTERVAL) if groups else None


def _describe_break_even(figures: Mapping[str, Any], readings: Mapping[str, float]) -> dict[str, float | None]:
    """Break-even with the eager step time and the printed speedup, whose bounds are its bounds."""
    eager_s = figures["eager_step_s"]
    ends = {"": figures["speedup"], "_low": figures["speedup_high"], "_high": figures["speedup_low"]}
    compile_s = {
        "break_even_steps": readings.get("compile_cold_s"),
        "break_even_warm_steps": readings.get("compile_warm_s"),
    }
    return {
        f"{name}{end}": break_even_steps(took_s, eager_s, eager_s / speedup if eager_s and speedup else None)
        for name, took_s in compile_s.items()
        for end, speedup in ends.items()
    }


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
