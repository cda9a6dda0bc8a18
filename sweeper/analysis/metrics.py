"""`METRICS` declares each figure of a trial: its name, what it means, how it is read, and where it
is shown.

A new metric that is the median of a reading over processes is one line of `METRICS`. Its CSV
column, MLflow metric, frame, line on the page, column for people and line in docs/metrics.md follow
from that line. A metric of a whole trial also needs a field in `result` and a line in `derive`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sweeper.core.record import (
    ARMS,
    MAX_CALLS_DIFFERENCE,
    PERCENTILES,
    Latency,
    LoopRun,
    PerArm,
    Process,
    ScriptRun,
    of_arm,
)

from .result import MetricValue, Result
from .stats import median_of

Reading = Callable[[Process], float | None]
NO_SCRIPT = ScriptRun()
SCALES = {"ms": 1e3, "mib": 1 / 2**20}  # from the base unit


@dataclass(frozen=True)
class Metric:
    """A figure of a trial and where it is shown. The name is that of the MLflow metric and ends in
    the unit.

    `of_process` reads the figure of a process, and the metric is the median over the processes that
    count. Without `of_process` it is the figure of that name in `Result.figures`.
    """

    name: str
    meaning: str
    of_process: Reading | None = None
    # which processes count: those with an empty cache, with a filled one; None: all
    cold: bool | None = None
    needs_ok: bool = False  # a wrong program has no speed
    kind: type = float
    mlflow: bool = False
    unit: str = ""  # of the column of speedups.csv, where it is not the unit of `name`
    heading: str = ""  # of the column that people see where the metric is known; "": none

    @property
    def csv_name(self) -> str:
        return f"{self.name.rpartition('_')[0]}_{self.unit}" if self.unit else self.name

    def read(self, processes: Iterable[Process]) -> float | None:
        """Return the median over the processes that count."""
        assert self.of_process is not None
        counted = [process for process in processes if self.cold in (None, process.cold)]
        return median_of(map(self.of_process, counted))

    def column_value(self, result: Result) -> MetricValue:
        """Return the figure of a result, in the unit of its column."""
        value = result.figures.get(self.name)
        if self.unit and isinstance(value, (int, float)):
            return value * SCALES[self.unit]
        return value


def _per_cache(name: str, meaning: str, of_process: Reading, **shown: Any) -> list[Metric]:
    """Declare a metric with an empty cache, and with a filled one."""
    cold, warm = f"{meaning} with an empty cache", f"{meaning} with a filled cache"
    return [
        Metric(f"{name}_cold_s", cold, of_process, cold=True, **shown),
        Metric(f"{name}_warm_s", warm, of_process, cold=False, **shown),
    ]


def _per_arm(
    name: str,
    meaning: str,
    read: Callable[[Process], PerArm | None] | None = None,
    needs_ok: bool = True,
    **shown: Any,
) -> list[Metric]:
    """Declare a metric of each arm, with the arm where `name` and `meaning` have `{arm}`.

    `needs_ok` holds for the compiled arm.
    """
    return [
        Metric(
            name.format(arm=arm),
            meaning.format(arm=arm),
            read and _read_arm(read, arm),
            needs_ok=needs_ok and arm == "compiled",
            **shown,
        )
        for arm in ARMS
    ]


def _read_arm(read: Callable[[Process], PerArm | None], arm: str) -> Reading:
    return lambda process: of_arm(read(process), arm)


def _compile_part(part: str) -> Metric:
    return Metric(
        f"compile_{part}_s",
        f"seconds of compile_cold_s in {part}",
        lambda process: process.compile_parts_s.get(part),
        cold=True,
    )


def _percentile(arm: str, share: str) -> Metric:
    def read(process: Process) -> float | None:
        latency: Latency | None = getattr(process.latencies, arm, None)
        return getattr(latency, f"{share}_s", None)

    meaning = (
        f"{share[1:]}th percentile of single {arm} steps, each waited for, with measure.clock=step"
    )
    is_compiled = arm == "compiled"
    return Metric(f"{arm}_{share}_s", meaning, read, needs_ok=is_compiled, mlflow=True, unit="ms")


def read_loop_step_s(process: Process) -> PerArm:
    """Return the seconds per step of a script's loop that runs one arm throughout; where steps
    differ in their calls of modules, those of the compiled loop are for as many calls as eager's.
    """
    times = _read_loops(process, lambda loop: loop.step_s)
    calls = _read_loops(process, lambda loop: loop.calls)
    if times.compiled is None or not (calls.eager and calls.compiled):
        return times
    factor = calls.eager / calls.compiled
    if abs(factor - 1) <= MAX_CALLS_DIFFERENCE:
        return times
    return PerArm(times.eager, times.compiled * factor)


def _read_loops(process: Process, read: Callable[[LoopRun], float | None]) -> PerArm:
    script = process.script or NO_SCRIPT
    eager, compiled = script.loop_eager, script.loop_compiled
    return PerArm(read(eager) if eager else None, read(compiled) if compiled else None)


# In the order of the columns of speedups.csv, which is a contract: new ones go to the end.
METRICS: list[Metric] = [
    Metric(
        "interval",
        "what the interval is taken over: none, processes (one compiled artifact) or draws",
        kind=str,
    ),
    Metric("speedup", "eager / compiled step time; empty unless the status is ok", mlflow=True),
    Metric("speedup_low", "lower end of its 95 % interval", mlflow=True),
    Metric("speedup_high", "upper end of its 95 % interval", mlflow=True),
    Metric("processes", "processes in which both arms were timed", kind=int),
    Metric("draws", "compile caches of these processes: each draw compiles anew", kind=int),
    Metric(
        "device_speedup",
        "eager / compiled device time per step: busy, or in a gap of its own",
        mlflow=True,
    ),
    Metric(
        "host_bound_fraction",
        "share of wall time in which the device waits for the host, in the worse arm",
    ),
    *_per_arm(
        "{arm}_step_s",
        "wall time per step of the {arm} arm, geometric mean over processes",
        mlflow=True,
        unit="ms",
    ),
    Metric("samples_per_s", "samples per second of the compiled arm", mlflow=True),
    *_per_cache(
        "compile",
        "extra wall seconds of the first compiled steps",
        lambda process: process.compile_s,
        mlflow=True,
    ),
    Metric(
        "break_even_steps",
        "steps after which compiling has paid; empty when it never does",
        mlflow=True,
    ),
    Metric("break_even_warm_steps", "steps after which compiling with a filled cache has paid"),
    *_per_arm(
        "{arm}_peak_memory_bytes",
        "peak device memory of the {arm} arm, less what was in use before the model",
        lambda process: process.memory_bytes,
        False,
        mlflow=True,
        unit="mib",
    ),
    Metric("graph_breaks", "graph breaks", kind=int, mlflow=True),
    Metric("recompiles", "recompilations", kind=int, mlflow=True),
    Metric("speedup_min", "smallest speedup of a process, where there are several"),
    Metric("speedup_max", "largest speedup of a process, where there are several"),
    Metric("device_speedup_low", "lower end of the 95 % interval of device_speedup"),
    Metric("device_speedup_high", "upper end of the 95 % interval of device_speedup"),
    Metric(
        "host_bound_arms",
        "arms whose device waits for the host for more than 5 % of the time",
        kind=str,
    ),
    Metric("break_even_steps_low", "break_even_steps at the upper end of the speedup"),
    Metric(
        "break_even_steps_high",
        "break_even_steps at the lower end of the speedup; empty: perhaps never",
    ),
    Metric("break_even_warm_steps_low", "break_even_warm_steps at the upper end of the speedup"),
    Metric("break_even_warm_steps_high", "break_even_warm_steps at the lower end of the speedup"),
    *_per_cache(
        "first_step",
        "from the start of a process to the end of its first compiled step,",
        lambda process: process.time_to_first_step_s,
    ),
    *map(_compile_part, ("dynamo", "aot_autograd", "inductor", "autotuning")),
    Metric("artifacts", "different compiled programs that the processes ran", kind=int),
    Metric(
        "tokens_per_s",
        "tokens per second of the compiled arm, of models that read text",
        mlflow=True,
    ),
    *(_percentile(arm, share) for arm in ARMS for share in PERCENTILES),
    *_per_arm(
        "{arm}_energy_j",
        "joules that the whole GPU uses per {arm} step, with measure.energy=true",
        lambda process: process.energy_j,
        mlflow=True,
    ),
    *_per_arm(
        "{arm}_device_step_s",
        "device time per step of the {arm} arm: busy, or in a gap of its own",
        lambda process: process.device_step_s,
        mlflow=True,
        unit="ms",
    ),
    *_per_arm(
        "{arm}_exposed_s",
        "time per step of the {arm} arm in which collectives run on the device and nothing else",
        lambda process: process.exposed_s,
        unit="ms",
    ),
    *_per_arm(
        "{arm}_host_step_s",
        "time in which the host prepares and launches a step of the {arm} arm, without "
        "waiting for the device",
        lambda process: process.host_step_s,
        unit="ms",
    ),
    *_per_arm(
        "{arm}_host_share",
        "host time of a step of the {arm} arm over its device step time (docs/reading-a-report.md)",
    ),
    Metric(
        "speedup_host_2x_faster", "predicted speedup where the host takes half the time per step"
    ),
    Metric(
        "speedup_host_2x_slower", "predicted speedup where the host takes twice the time per step"
    ),
    Metric("device_time_missing", "why device_speedup is missing", kind=str),
    Metric("memory_missing", "why a peak memory is missing", kind=str),
    Metric(
        "loop_speedup", "of a script: eager / compiled time per step of its whole loop", mlflow=True
    ),
    Metric("loop_speedup_low", "lower end of the 95 % interval of loop_speedup", mlflow=True),
    Metric("loop_speedup_high", "upper end of the 95 % interval of loop_speedup", mlflow=True),
    *_per_arm(
        "{arm}_loop_step_s",
        "wall time per step of a script's loop that runs {arm} throughout, loader and all",
        read_loop_step_s,
        unit="ms",
    ),
    *_per_arm(
        "{arm}_loader_share",
        "share of that time in which the {arm} loop waits for its loader",
        lambda process: _read_loops(process, lambda loop: loop.loader_share),
        False,
    ),
]
