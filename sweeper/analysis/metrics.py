"""The figures of a trial: `derive` makes a `Result` of a record, and `METRICS` declares which figure is shown where.

A new metric that is the median of a reading over processes is one line of `METRICS`. Its CSV column, MLflow metric,
frame, line on the page, column for people and line in docs/metrics.md follow from that line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from statistics import median
from typing import Any

from sweeper.analysis.stats import Estimate, group_by_draw, mean_over_draws
from sweeper.core.libraries import SCRIPT
from sweeper.core.record import (
    ARMS,
    MAX_VOID_ROUNDS,
    PERCENTILES,
    READ_LOADER,
    SAVED_FILE,
    Accuracy,
    LoopRun,
    PerArm,
    Process,
    Record,
    ScriptRun,
)

MIN_DRAWS_FOR_INTERVAL = 3  # with fewer compile caches, an interval describes these compiled artifacts alone
# Between two kernels that follow each other without waiting for the host: 0.6 to 1.5 us, typically 1.1, in the arms of
# six models on an H200 (docs/results/h200-repeatability.md). It stands in where a record has no gap of its own.
USUAL_GAP_S = 1.2e-6
HOST_BOUND = 0.05  # an arm is host-bound when its device waits for the host for a larger share of wall time
# Host noise may be bimodal, and a few processes may all lie in one mode: docs/results/coverage.md.
MIN_PROCESSES_IF_HOST_BOUND = 5
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
    busy_estimate: Estimate | None = None
    busy_speedup: float | None = None
    busy_speedup_low: float | None = None
    busy_speedup_high: float | None = None
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
    eager_host_share: float | None = None  # host time of a step over its device step time
    compiled_host_share: float | None = None
    speedup_host_2x_faster: float | None = None
    speedup_host_2x_slower: float | None = None
    device_time_missing: str | None = None  # why device_speedup is, where a process said so
    memory_missing: str | None = None  # why a peak memory is
    loop_estimate: Estimate | None = None  # of a script, whose loop runs with one arm throughout
    loop_speedup: float | None = None
    loop_speedup_low: float | None = None
    loop_speedup_high: float | None = None
    seen_of_script: ScriptRun | None = None  # by the first process
    is_void_by_script: bool = False  # whether the trial ended since a script did more than train in its rounds
    readings: Mapping[str, float] = field(default_factory=dict)  # metrics with `of_process`; missing ones are left out

    @property
    def by_device(self) -> tuple[str, float] | None:
        """The clock of the device, `device` (step time) or else `busy`, and the speedup by it; None where unknown."""
        clocks = (("device", self.device_speedup), ("busy", self.busy_speedup))
        return next(((clock, speedup) for clock, speedup in clocks if speedup is not None), None)


@dataclass(frozen=True)
class Metric:
    """A figure of a trial and where it is shown. The name is that of the MLflow metric and ends in the unit.

    `of_process` reads the figure of a process, and the metric is the median over the processes that count. Without
    `of_process` it is the field of `Result` of that name.
    """

    name: str
    meaning: str
    of_process: Callable[[Process], float | None] | None = None
    cold: bool | None = None  # which processes count: those with an empty cache, with a filled one; None: all
    needs_ok: bool = False  # a wrong program has no speed
    kind: type = float
    mlflow: bool = False
    column: str = ""  # of speedups.csv, where its unit is another one
    scale: float = 1.0  # from the unit of `name` to that of `column`
    heading: str = ""  # of the column that people see where the metric is known; "": none

    @property
    def csv_name(self) -> str:
        return self.column or self.name

    def read(self, processes: Iterable[Process]) -> float | None:
        """Return the median over the processes that count."""
        assert self.of_process is not None
        return _median(self.of_process(process) for process in processes if self.cold in (None, process.cold))

    def value(self, result: Result) -> Value:
        """Return the figure of a result, in the unit of `name`."""
        return result.readings.get(self.name) if self.of_process else getattr(result, self.name)

    def column_value(self, result: Result) -> Value:
        """Return the figure of a result, in the unit of `column`."""
        value = self.value(result)
        return value * self.scale if self.scale != 1 and isinstance(value, (int, float)) else value


def _read_arm(name: str, arm: str) -> Callable[[Process], float | None]:
    return methodcaller("read_arm", name, arm)


def _per_cache(
    name: str, meaning: str, of_process: Callable[[Process], float | None], mlflow: bool = False
) -> list[Metric]:
    """Declare a metric with an empty cache, and with a filled one."""
    return [
        Metric(f"{name}_cold_s", f"{meaning} with an empty cache", of_process, cold=True, mlflow=mlflow),
        Metric(f"{name}_warm_s", f"{meaning} with a filled cache", of_process, cold=False, mlflow=mlflow),
    ]


def _compile_part(part: str) -> Metric:
    meaning = f"seconds of compile_cold_s in {part}"
    return Metric(f"compile_{part}_s", meaning, lambda process: process.compile_parts_s.get(part), cold=True)


def _percentile(arm: str, share: str) -> Metric:
    def read(process: Process) -> float | None:
        return getattr(getattr(process.latencies, arm), f"{share}_s") if process.latencies else None

    meaning = f"{share[1:]}th percentile of single {arm} steps, each waited for, with measure.clock=step"
    name = f"{arm}_{share}"
    ok = arm == "compiled"
    return Metric(f"{name}_s", meaning, read, needs_ok=ok, mlflow=True, column=f"{name}_ms", scale=1e3)


def _peak_memory(arm: str) -> Metric:
    name, meaning = f"{arm}_peak_memory", f"peak device memory of the {arm} arm, less what was in use before the model"
    read = _read_arm("memory_bytes", arm)
    return Metric(f"{name}_bytes", meaning, read, mlflow=True, column=f"{name}_mib", scale=1 / MIB)


def _energy(arm: str) -> Metric:
    meaning = f"joules that the whole GPU uses per {arm} step, with measure.energy=true"
    return Metric(f"{arm}_energy_j", meaning, _read_arm("energy_j", arm), needs_ok=arm == "compiled", mlflow=True)


def _host_time(arm: str) -> Metric:
    meaning = f"time in which the host prepares and launches a step of the {arm} arm, without waiting for the device"
    read, ok = _read_arm("host_step_s", arm), arm == "compiled"
    return Metric(f"{arm}_host_step_s", meaning, read, needs_ok=ok, column=f"{arm}_host_step_ms", scale=1e3)


def _host_share(arm: str) -> Metric:
    return Metric(f"{arm}_host_share", f"host time of a step of the {arm} arm over its device step time")


def _read_loop(process: Process, arm: str) -> LoopRun | None:
    script = process.script
    return None if script is None else script.loop_eager if arm == "eager" else script.loop_compiled


def _loop_step(arm: str) -> Metric:
    def read(process: Process) -> float | None:
        return run.step_s if (run := _read_loop(process, arm)) else None

    meaning = f"wall time per step of a script's loop that runs {arm} throughout, loader and all"
    ok = arm == "compiled"
    return Metric(f"{arm}_loop_step_s", meaning, read, needs_ok=ok, column=f"{arm}_loop_step_ms", scale=1e3)


def _loader_share(arm: str) -> Metric:
    def read(process: Process) -> float | None:
        run = _read_loop(process, arm)
        return None if run is None or run.loader_s is None else run.loader_s / run.step_s

    return Metric(f"{arm}_loader_share", f"share of that time in which the {arm} loop waits for its loader", read)


def _step_time(arm: str) -> Metric:
    meaning = f"wall time per step of the {arm} arm, geometric mean over processes"
    return Metric(f"{arm}_step_s", meaning, mlflow=True, column=f"{arm}_step_ms", scale=1e3)


def _device_step(arm: str) -> Metric:
    meaning = f"device time per step of the {arm} arm: busy, or in a gap of its own"
    read, ok = _read_arm("device_step_s", arm), arm == "compiled"
    name = f"{arm}_device_step"
    return Metric(f"{name}_s", meaning, read, needs_ok=ok, mlflow=True, column=f"{name}_ms", scale=1e3)


# In the order of the columns of speedups.csv, which is a contract: new ones go to the end.
METRICS: list[Metric] = [
    Metric("interval", "what the interval is taken over: none, processes (one compiled artifact) or draws", kind=str),
    Metric("speedup", "eager / compiled step time; empty unless the status is ok", mlflow=True),
    Metric("speedup_low", "lower end of its 95 % interval", mlflow=True),
    Metric("speedup_high", "upper end of its 95 % interval", mlflow=True),
    Metric("processes", "processes in which both arms were timed", kind=int),
    Metric("draws", "compile caches of these processes", kind=int),
    Metric("device_speedup", "eager / compiled device time per step: busy, or in a gap of its own", mlflow=True),
    Metric("host_bound_fraction", "share of wall time in which the device waits for the host, in the worse arm"),
    *map(_step_time, ARMS),
    Metric("samples_per_s", "samples per second of the compiled arm", mlflow=True),
    *_per_cache("compile", "extra wall seconds of the first compiled steps", lambda process: process.compile_s, True),
    Metric("break_even_steps", "steps after which compiling has paid; empty when it never does", mlflow=True),
    Metric("break_even_warm_steps", "steps after which compiling with a filled cache has paid"),
    *map(_peak_memory, ARMS),
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
    *_per_cache(
        "first_step",
        "from the start of a process to the end of its first compiled step,",
        lambda process: process.time_to_first_step_s,
    ),
    *map(_compile_part, ("dynamo", "aot_autograd", "inductor", "autotuning")),
    Metric("artifacts", "different compiled programs that the processes ran", kind=int),
    Metric("tokens_per_s", "tokens per second of the compiled arm, of models that read text", mlflow=True),
    *(_percentile(arm, share) for arm in ARMS for share in PERCENTILES),
    *map(_energy, ARMS),
    Metric("busy_speedup", "eager / compiled time per step in which the device is busy, gaps left out", mlflow=True),
    Metric("busy_speedup_low", "lower end of the 95 % interval of busy_speedup"),
    Metric("busy_speedup_high", "upper end of the 95 % interval of busy_speedup"),
    *map(_device_step, ARMS),
    *map(_host_time, ARMS),
    *map(_host_share, ARMS),
    Metric("speedup_host_2x_faster", "predicted speedup where the host takes half the time per step"),
    Metric("speedup_host_2x_slower", "predicted speedup where the host takes twice the time per step"),
    Metric("device_time_missing", "why device_speedup is missing", kind=str),
    Metric("memory_missing", "why a peak memory is missing", kind=str),
    Metric("loop_speedup", "of a script: eager / compiled time per step of its whole loop", mlflow=True),
    Metric("loop_speedup_low", "lower end of the 95 % interval of loop_speedup"),
    Metric("loop_speedup_high", "upper end of the 95 % interval of loop_speedup"),
    *map(_loop_step, ARMS),
    *map(_loader_share, ARMS),
]


def derive(record: Record) -> Result:
    """Compute the figures of a record. Speedups and what needs them exist only for status `ok`."""
    steps_s = ({arm: time_s for arm in ARMS if (time_s := process.step_s(arm))} for process in record.processes)
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
        figures |= _describe_headroom(readings)
        figures |= _explain_missing(record, figures, readings)
    return Result(**figures, readings=readings)


def find_worst_accuracy(record: Record) -> Accuracy | None:
    """Return the check of the process whose compiled step came nearest to its bound, or went furthest beyond it."""

    def share_of_bound(accuracy: Accuracy) -> float:
        error, bound = accuracy.compiled_error, accuracy.bound
        if error is None or bound is None:  # a failed check without a finite error, or nothing was compared
            return math.inf if accuracy.passed is False else -1.0
        return error / bound if bound else (math.inf if error else 0.0)

    found = (item.accuracy for item in record.processes if item.accuracy)
    return max(found, key=lambda accuracy: (accuracy.passed is False, share_of_bound(accuracy)), default=None)


def break_even_steps(compile_s: float | None, eager_s: float | None, compiled_s: float | None) -> float | None:
    """Return the steps after which compiling has paid: compile_s / (eager_s - compiled_s); None when it never does."""
    if compile_s is None or not eager_s or not compiled_s or compiled_s >= eager_s:
        return None
    return max(compile_s, 0.0) / (eager_s - compiled_s)


def predict_step_s(host_s: float, device_s: float, host_slowdown: float) -> float:
    """Predict the wall seconds of a step where the host takes `host_slowdown` times as long for it as here.

    Host and device work side by side, so the slower of the two decides.
    """
    return max(host_s * host_slowdown, device_s)


def predict_speedup(
    eager_host_s: float, eager_device_s: float, compiled_host_s: float, compiled_device_s: float, host_slowdown: float
) -> float:
    """Predict the speedup where the host takes `host_slowdown` times as long for a step as here, in both arms."""
    eager_s = predict_step_s(eager_host_s, eager_device_s, host_slowdown)
    return eager_s / predict_step_s(compiled_host_s, compiled_device_s, host_slowdown)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A process in which both arms were timed: median wall seconds per step over the rounds that count."""

    process: Process
    step_s: Mapping[str, float]  # by arm

    @property
    def log_speedup(self) -> float:
        return math.log(self.step_s["eager"] / self.step_s["compiled"])

    @property
    def device_log_speedup(self) -> float | None:
        return _log_ratio(self.process.device_step_s)

    @property
    def busy_log_speedup(self) -> float | None:
        return _log_ratio(self.process.device_time_s)

    @property
    def loop_log_speedup(self) -> float | None:
        eager, compiled = (_read_loop(self.process, arm) for arm in ARMS)
        return math.log(eager.step_s / compiled.step_s) if eager and compiled else None

    def waiting_fraction(self, arm: str) -> float | None:
        """Compute the share of an arm's wall time in which the device waits for the host, beyond its own gaps.

        Of a record that knows no device step time, beyond the usual gaps.
        """
        fields = ("device_step_s", "device_time_s", "device_kernels")
        device_s, busy_s, kernels = (self.process.read_arm(name, arm) for name in fields)
        if device_s is None and busy_s is not None and kernels is not None:
            device_s = busy_s + kernels * USUAL_GAP_S
        return None if device_s is None else max(0.0, 1 - device_s / self.step_s[arm])


def _log_ratio(times: PerArm | None) -> float | None:
    return math.log(times.eager / times.compiled) if times and times.eager and times.compiled else None


def _describe_any_status(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    """Compute the fields of a Result that a trial has whatever its status is."""
    diagnostics = record.diagnostics
    prints = {(process.code_fingerprint, process.autotuning_fingerprint) for process in record.processes}
    eager = _estimate_step(measured, "eager")
    return {
        "processes": len(measured),
        "draws": len({item.process.draw for item in measured}),
        "eager_step_s": eager.ratio if eager else None,
        "graph_breaks": sum(item.count for item in diagnostics.graph_breaks) if diagnostics else None,
        "recompiles": diagnostics.recompiles if diagnostics else None,
        "artifacts": len({pair for pair in prints if any(pair)}) or None,
        "seen_of_script": next((process.script for process in record.processes if process.script), None),
        "is_void_by_script": _is_void_by_script(record),
    }


def _is_void_by_script(record: Record) -> bool:
    rounds = record.processes[-1].rounds if record.processes else ()
    reasons = [item.void for item in rounds if item.void][-MAX_VOID_ROUNDS:]
    ended = record.status == "runtime_error" and len(reasons) == MAX_VOID_ROUNDS and rounds[-1].void is not None
    return ended and {READ_LOADER, SAVED_FILE}.issuperset(reasons)


def _explain_missing(
    record: Record, figures: Mapping[str, Any], readings: Mapping[str, float]
) -> dict[str, str | None]:
    """Join the reasons of processes for figures that the trial lacks; a CPU has neither figure by nature."""
    lacking = {
        "device_time_missing": figures["device_speedup"] is None,
        "memory_missing": any(f"{arm}_peak_memory_bytes" not in readings for arm in ARMS),
    }
    reasons = {
        name: dict.fromkeys(reason for process in record.processes if (reason := getattr(process, name)))
        for name, is_lacking in lacking.items()
        if is_lacking and record.trial.device != "cpu"
    }
    return {name: "; ".join(found) or None for name, found in reasons.items()}


def _describe_compiled_arm(record: Record, measured: Sequence[_Measured]) -> dict[str, Any]:
    waiting = {arm: _median(item.waiting_fraction(arm) for item in measured) for arm in ARMS}
    bound = [arm for arm, share in waiting.items() if share is not None and share > HOST_BOUND]
    eager, compiled = (_estimate_step(measured, arm, arm in bound) for arm in ARMS)
    assert compiled is not None
    return {
        "compiled_step_s": compiled.ratio,
        "samples_per_s": None if record.trial.workload == SCRIPT else _samples_per_step(record) / compiled.ratio,
        "tokens_per_s": tokens / compiled.ratio if (tokens := measured[0].process.tokens_per_step) else None,
        "host_bound_fraction": max((share for share in waiting.values() if share is not None), default=None),
        "host_bound_arms": "both" if len(bound) > 1 else bound[0] if bound else None,
        "eager_estimate": eager,
        "compiled_estimate": compiled,
        "compiled_waits_fraction": waiting["compiled"],
    }


def _samples_per_step(record: Record) -> float:
    return record.trial.replace_batch_size(record.batch_size).samples_per_step


def _describe_speedups(measured: Sequence[_Measured], draws: int, is_host_bound: bool) -> dict[str, Any]:
    """Compute speedups by the wall clock, of the device, and of its busy time alone."""
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
        **_describe_speedup("device_", _estimate(measured, [item.device_log_speedup for item in measured])),
        **_describe_speedup("loop_", _estimate(measured, [item.loop_log_speedup for item in measured])),
        **_describe_speedup("busy_", _estimate(measured, [item.busy_log_speedup for item in measured])),
    }


def _describe_speedup(prefix: str, estimate: Estimate | None) -> dict[str, Any]:
    bounds = estimate.interval() if estimate else None
    return {
        f"{prefix}estimate": estimate,
        f"{prefix}speedup": estimate.ratio if estimate else None,
        f"{prefix}speedup_low": bounds.low if bounds else None,
        f"{prefix}speedup_high": bounds.high if bounds else None,
    }


def _estimate_step(measured: Sequence[_Measured], arm: str, is_host_bound: bool = False) -> Estimate | None:
    """Estimate log seconds per step as the speedup is estimated, so that the ratio of the arms is the speedup."""
    return _estimate(measured, [math.log(item.step_s[arm]) for item in measured], is_host_bound)


def _estimate(
    measured: Sequence[_Measured], logs: Sequence[float | None], is_host_bound: bool = False
) -> Estimate | None:
    """Estimate the mean log over processes, or over draws where there are enough: each draw tunes kernels anew.

    A host-bound mean over few processes gets no variance, and so no interval: the range of processes is shown.
    """
    groups = group_by_draw((item.process.draw, log) for item, log in zip(measured, logs, strict=True))
    if not groups:
        return None
    estimate = mean_over_draws(groups, len(groups) >= MIN_DRAWS_FOR_INTERVAL)
    if is_host_bound and len(measured) < MIN_PROCESSES_IF_HOST_BOUND:
        return Estimate(estimate.log, count=estimate.count)
    return estimate


def _describe_break_even(figures: Mapping[str, Any], readings: Mapping[str, float]) -> dict[str, float | None]:
    """Compute break-even with the eager step time and the speedup, or an end of its interval."""
    eager_s = figures["eager_step_s"]
    ends = {"": figures["speedup"], "_low": figures["speedup_high"], "_high": figures["speedup_low"]}
    compile_times = {"break_even_steps": "compile_cold_s", "break_even_warm_steps": "compile_warm_s"}
    return {
        f"{name}{end}": break_even_steps(readings.get(compile_time), eager_s, speedup and eager_s / speedup)
        for name, compile_time in compile_times.items()
        for end, speedup in ends.items()
    }


def _describe_headroom(readings: Mapping[str, float]) -> dict[str, float]:
    """Compute the shares of arms whose two times are known, and where all four are known, predicted speedups."""
    known: dict[str, tuple[float, float]] = {}  # seconds per step of the host and of the device, by arm
    for arm in ARMS:
        host_s, device_s = (readings.get(f"{arm}_{clock}_step_s") for clock in ("host", "device"))
        if host_s and device_s:
            known[arm] = host_s, device_s
    shares = {f"{arm}_host_share": host_s / device_s for arm, (host_s, device_s) in known.items()}
    if len(known) < len(ARMS):
        return shares
    both = *known["eager"], *known["compiled"]
    faster, slower = (predict_speedup(*both, host_slowdown) for host_slowdown in (0.5, 2.0))
    return {**shares, "speedup_host_2x_faster": faster, "speedup_host_2x_slower": slower}


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
