"""A result: the figures that follow from a record, computed in one place for tables, MLflow and the terminal.

Place in the flow: `Record -> Result`. Figures that do not exist are None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median

from sweeper.record import Process, Record
from sweeper.stats import Estimate, mean_of_logs

DRAWS_FOR_AN_INTERVAL = 3  # with fewer compile caches, an interval speaks of one compiled artifact


@dataclass(frozen=True)
class Result:
    """Speedups are eager / compiled; times are wall seconds; memory is bytes on the device."""

    estimate: Estimate | None
    interval: str  # none, processes or draws: what the interval is taken over
    processes: int
    draws: int
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    device_speedup: float | None = None
    host_bound_fraction: float | None = None
    eager_step_s: float | None = None
    compiled_step_s: float | None = None
    samples_per_s: float | None = None
    compile_cold_s: float | None = None
    compile_warm_s: float | None = None
    break_even_steps: float | None = None
    break_even_warm_steps: float | None = None
    eager_peak_memory_bytes: float | None = None
    compiled_peak_memory_bytes: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None


def derive(record: Record) -> Result:
    """The result of a record. Speedups and what needs them only for status `ok`: a wrong program has no speed."""
    measured = [process for process in record.processes if _step_s(process, "eager") and _step_s(process, "compiled")]
    eager_s = _median(_step_s(process, "eager") for process in measured)
    compiled_s = _median(_step_s(process, "compiled") for process in measured)
    cold_s = _median(process.compile_s for process in record.processes if process.cold)
    warm_s = _median(process.compile_s for process in record.processes if not process.cold)
    ok = record.status == "ok"
    draws = {process.draw for process in measured}
    interval = "draws" if len(draws) >= DRAWS_FOR_AN_INTERVAL else "processes" if len(measured) > 1 else "none"
    estimate = _estimate(measured, by_draw=interval == "draws", log_ratio=_log_speedup) if ok and measured else None
    bounds = estimate.interval() if estimate else None
    device = [process for process in measured if _device_log_speedup(process) is not None]
    diagnostics = record.diagnostics
    return Result(
        estimate=estimate,
        interval=interval if ok and bounds else "none",
        processes=len(measured),
        draws=len(draws),
        speedup=estimate.ratio if estimate else None,
        speedup_low=bounds.low if bounds else None,
        speedup_high=bounds.high if bounds else None,
        device_speedup=_estimate(device, by_draw=interval == "draws", log_ratio=_device_log_speedup).ratio
        if ok and device
        else None,
        eager_step_s=eager_s,
        compiled_step_s=compiled_s if ok else None,
        samples_per_s=record.trial.batch_size / compiled_s if ok and compiled_s else None,
        compile_cold_s=cold_s,
        compile_warm_s=warm_s,
        break_even_steps=break_even_steps(cold_s, eager_s, compiled_s) if ok else None,
        break_even_warm_steps=break_even_steps(warm_s, eager_s, compiled_s) if ok else None,
        eager_peak_memory_bytes=_median(p.memory_bytes.eager for p in record.processes if p.memory_bytes),
        compiled_peak_memory_bytes=_median(p.memory_bytes.compiled for p in record.processes if p.memory_bytes),
        graph_breaks=sum(item.count for item in diagnostics.graph_breaks) if diagnostics else None,
        recompiles=diagnostics.recompiles if diagnostics else None,
    )


def break_even_steps(compile_s: float | None, eager_s: float | None, compiled_s: float | None) -> float | None:
    """Steps after which compiling has paid: compile_s / (eager_s - compiled_s); None when it never does."""
    if compile_s is None or not eager_s or not compiled_s or compiled_s >= eager_s:
        return None
    return max(compile_s, 0.0) / (eager_s - compiled_s)


def _step_s(process: Process, arm: str) -> float | None:
    """Median seconds a step over the rounds that count."""
    if not process.steps_per_block:
        return None
    blocks = [getattr(round_, f"{arm}_s") for round_ in process.rounds if round_.void is None]
    blocks = [block_s for block_s in blocks if block_s is not None]
    return median(blocks) / process.steps_per_block if blocks else None


def _log_speedup(process: Process) -> float | None:
    eager_s, compiled_s = _step_s(process, "eager"), _step_s(process, "compiled")
    return math.log(eager_s / compiled_s) if eager_s and compiled_s else None


def _device_log_speedup(process: Process) -> float | None:
    busy = process.device_time_s
    return math.log(busy.eager / busy.compiled) if busy and busy.eager and busy.compiled else None


def _estimate(processes: list[Process], *, by_draw: bool, log_ratio: Callable[[Process], float | None]) -> Estimate:
    """Over processes, or over the means of draws: kernels are raced anew in each draw, so draws are what varies."""
    logs = [(process.draw, value) for process in processes if (value := log_ratio(process)) is not None]
    if not by_draw:
        return mean_of_logs([value for _, value in logs])
    draws = sorted({draw for draw, _ in logs})
    return mean_of_logs([fmean(value for of, value in logs if of == draw) for draw in draws])


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
