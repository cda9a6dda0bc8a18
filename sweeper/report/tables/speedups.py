"""speedups.csv: a row a trial, failed ones included.

| column | meaning |
|---|---|
| `trial_id model family suite library` | the trial, the model as people call it, its labels, who builds it |
| `workload mode backend precision` | names of config options; `backend` is empty for mode=eager |
| `batch_size` | the one used |
| `variant` | every other axis that is not at its default, and the device type where the records at hand have several |
| `status flags` | one status; flags joined by `;` |
| `interval` | what the interval is taken over: `none`, `processes` (one compiled artifact) or `draws` |
| `speedup speedup_low speedup_high` | eager / compiled step time with a 95 % interval; empty unless the status is ok |
| `processes draws` | how many of each were measured |
| `device_speedup` | the same ratio of the time in which the device was busy |
| `host_bound_fraction` | share of wall time in which the device waits for the host |
| `eager_step_ms compiled_step_ms samples_per_s` | geometric means over processes; samples of the compiled arm |
| `compile_cold_s compile_warm_s` | extra wall seconds of the first compiled steps, with empty and filled cache |
| `break_even_steps break_even_warm_steps` | steps after which compiling has paid; empty when it never does |
| `eager_peak_memory_mib compiled_peak_memory_mib` | device memory, MiB |
| `graph_breaks recompiles` | counts |
| `message` | the first line of what went wrong |
| `speedup_min speedup_max` | the smallest and largest speedup of a process; from two processes on |
| `speedup_moderated_low speedup_moderated_high` | moderated t interval, see `across`; never the one that is printed |
| `device_speedup_low device_speedup_high` | 95 % interval, by the same rule of draws and processes |
| `host_bound_arms` | `eager`, `compiled` or `both`: where the device waits for the host for more than 5 % of the time |
| `break_even_steps_low break_even_steps_high` | from the bounds of the speedup; no `high`: perhaps never; `warm` too |
| `first_step_cold_s first_step_warm_s` | from the start of the process to the end of its first compiled step |
| `compile_dynamo_s compile_aot_autograd_s compile_inductor_s compile_autotuning_s` | parts of compiling cold |
| `artifacts` | how many different compiled programs the processes ran |
| `accuracy_reference accuracy_worst` | what the compiled step was compared with; its worst tensor, by error / bound |
| `accuracy_error accuracy_bound` | root mean squares against the reference: that tensor's, and what is allowed |
| `tokens_per_s` | of the compiled arm, of models that read text |
| `eager_p50_ms eager_p90_ms eager_p99_ms` and `compiled_...` | percentiles of single steps, with `measure.clock=step` |
| `eager_energy_j compiled_energy_j` | joules of the whole GPU a step, with `measure.energy=true` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sweeper.analysis.metrics import PROCESSES_IF_HOST_BOUND
from sweeper.core.record import ARMS, Accuracy
from sweeper.loading.entries import Entry
from sweeper.report.formatting import (
    AXES,
    MAX_NAMES,
    _known,
    as_text,
    estimate,
    figure,
    flags,
    number,
    ratio,
    shortened,
    text,
    trial_name,
    varying,
)
from sweeper.report.table import Column, Row, Table, Value

MIB = 2**20


def _of_accuracy(name: str, value: Callable[[Accuracy], Value]) -> Column[Entry]:
    return Column(name, lambda entry: value(entry.worst) if entry.worst else None)


COLUMNS: tuple[Column[Entry], ...] = (
    Column("trial_id", lambda entry: entry.record.trial_id),
    Column("model", lambda entry: entry.record.trial.labels.model),
    Column("family", lambda entry: entry.record.trial.labels.family),
    Column("suite", lambda entry: entry.record.trial.labels.suite),
    Column("library", lambda entry: entry.record.trial.model.library),
    Column("workload", lambda entry: entry.record.trial.workload),
    Column("mode", lambda entry: entry.record.trial.mode),
    Column("backend", lambda entry: backend(entry)),
    Column("precision", lambda entry: entry.record.trial.labels.precision),
    Column("batch_size", lambda entry: entry.record.batch_size),
    Column("variant", lambda entry: entry.variant),
    Column("status", lambda entry: entry.record.status),
    Column("flags", lambda entry: entry.flags),
    Column("interval", lambda entry: entry.result.interval),
    Column("speedup", lambda entry: entry.result.speedup),
    Column("speedup_low", lambda entry: entry.result.speedup_low),
    Column("speedup_high", lambda entry: entry.result.speedup_high),
    Column("processes", lambda entry: entry.result.processes),
    Column("draws", lambda entry: entry.result.draws),
    Column("device_speedup", lambda entry: entry.result.device_speedup),
    Column("host_bound_fraction", lambda entry: entry.result.host_bound_fraction),
    Column("eager_step_ms", lambda entry: _milliseconds(entry.result.eager_step_s)),
    Column("compiled_step_ms", lambda entry: _milliseconds(entry.result.compiled_step_s)),
    Column("samples_per_s", lambda entry: entry.result.samples_per_s),
    Column("compile_cold_s", lambda entry: entry.result.compile_cold_s),
    Column("compile_warm_s", lambda entry: entry.result.compile_warm_s),
    Column("break_even_steps", lambda entry: entry.result.break_even_steps),
    Column("break_even_warm_steps", lambda entry: entry.result.break_even_warm_steps),
    Column("eager_peak_memory_mib", lambda entry: _mebibytes(entry.result.eager_peak_memory_bytes)),
    Column("compiled_peak_memory_mib", lambda entry: _mebibytes(entry.result.compiled_peak_memory_bytes)),
    Column("graph_breaks", lambda entry: entry.result.graph_breaks),
    Column("recompiles", lambda entry: entry.result.recompiles),
    Column("message", lambda entry: _first_line(entry.record.message)),
    # What stands above is a contract: names and order stay. What is new is added at the end.
    Column("speedup_min", lambda entry: entry.result.speedup_min),
    Column("speedup_max", lambda entry: entry.result.speedup_max),
    Column("speedup_moderated_low", lambda entry: entry.moderated.low if entry.moderated else None),
    Column("speedup_moderated_high", lambda entry: entry.moderated.high if entry.moderated else None),
    Column("device_speedup_low", lambda entry: entry.result.device_speedup_low),
    Column("device_speedup_high", lambda entry: entry.result.device_speedup_high),
    Column("host_bound_arms", lambda entry: entry.result.host_bound_arms),
    Column("break_even_steps_low", lambda entry: entry.result.break_even_steps_low),
    Column("break_even_steps_high", lambda entry: entry.result.break_even_steps_high),
    Column("break_even_warm_steps_low", lambda entry: entry.result.break_even_warm_steps_low),
    Column("break_even_warm_steps_high", lambda entry: entry.result.break_even_warm_steps_high),
    Column("first_step_cold_s", lambda entry: entry.result.first_step_cold_s),
    Column("first_step_warm_s", lambda entry: entry.result.first_step_warm_s),
    Column("compile_dynamo_s", lambda entry: entry.result.compile_dynamo_s),
    Column("compile_aot_autograd_s", lambda entry: entry.result.compile_aot_autograd_s),
    Column("compile_inductor_s", lambda entry: entry.result.compile_inductor_s),
    Column("compile_autotuning_s", lambda entry: entry.result.compile_autotuning_s),
    Column("artifacts", lambda entry: entry.result.artifacts),
    _of_accuracy("accuracy_reference", lambda accuracy: accuracy.reference),
    _of_accuracy("accuracy_worst", lambda accuracy: accuracy.worst),
    _of_accuracy("accuracy_error", lambda accuracy: accuracy.compiled_error),
    _of_accuracy("accuracy_bound", lambda accuracy: accuracy.bound),
    Column("sweep", lambda entry: _name_of(entry.folder.parent)),
    Column("tokens_per_s", lambda entry: entry.result.tokens_per_s),
    Column("eager_p50_ms", lambda entry: _milliseconds(entry.result.eager_p50_s)),
    Column("eager_p90_ms", lambda entry: _milliseconds(entry.result.eager_p90_s)),
    Column("eager_p99_ms", lambda entry: _milliseconds(entry.result.eager_p99_s)),
    Column("compiled_p50_ms", lambda entry: _milliseconds(entry.result.compiled_p50_s)),
    Column("compiled_p90_ms", lambda entry: _milliseconds(entry.result.compiled_p90_s)),
    Column("compiled_p99_ms", lambda entry: _milliseconds(entry.result.compiled_p99_s)),
    Column("eager_energy_j", lambda entry: entry.result.eager_energy_j),
    Column("compiled_energy_j", lambda entry: entry.result.compiled_energy_j),
)


def _name_of(sweep: Path) -> str:
    """That of the folder itself; to resolve every path takes ten times as long as to ask whether it is a link."""
    return sweep.resolve().name if sweep.is_symlink() or sweep.name in ("", "..") else sweep.name


def speedups(entries: Iterable[Entry]) -> Table:
    return Table.of(COLUMNS, entries)


def backend(entry: Entry) -> str | None:
    """The backend's name; None where nothing is compiled."""
    return entry.record.trial.backend if entry.record.trial.mode != "eager" else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _mebibytes(size: float | None) -> float | None:
    return None if size is None else size / MIB


def _first_line(message: str | None) -> str | None:
    return next((line for line in (message or "").splitlines() if line.strip()), None)


def break_even(row: Row) -> str:
    """Steps until compiling has paid, e.g. `1,272 [1,250, 1,310]` or `never`; `≤` as in `compile_time`."""
    speedup, steps = number(row, "speedup"), number(row, "break_even_steps")
    if speedup is None or number(row, "compile_cold_s") is None:
        return ""
    low, high = number(row, "break_even_steps_low"), number(row, "break_even_steps_high")
    bounds = f" [{_steps(low)}, {_steps(high)}]" if low is not None else ""
    return f"{at_most(row) if steps is not None else ''}{_steps(steps)}{bounds}"


def _steps(steps: float | None) -> str:
    return "never" if steps is None else f"{math.ceil(steps):,}"


def compile_time(row: Row) -> str:
    """Seconds of compiling cold; `≤24.6` where others kept the processor busy meanwhile."""
    found = figure(number(row, "compile_cold_s"))
    return f"{at_most(row)}{found}" if found else ""


def at_most(row: Row) -> str:
    """`≤` before a compile time that others made longer, and before what follows from it."""
    found = row["flags"]
    return "≤" if isinstance(found, tuple) and "compile_contended" in found else ""


def memory_ratio(row: Row) -> str:
    return ratio(peak_ratio(row))


def peak_ratio(row: Row) -> float | None:
    """Eager / compiled peak memory of a trial that is ok; above 1, compiling saves."""
    eager, compiled = number(row, "eager_peak_memory_mib"), number(row, "compiled_peak_memory_mib")
    return eager / compiled if eager and compiled and row["status"] == "ok" else None


def speedup_or_status(row: Row) -> str:
    """`1.58 [1.55, 1.61]`, or the range of processes, `2.01 (1.89 to 2.12)`, where host noise allows no interval."""
    if row["status"] != "ok":
        return text(row["status"])
    if shows_range(row):
        low, high = (ratio(number(row, name)) for name in ("speedup_min", "speedup_max"))
        return f"{ratio(number(row, 'speedup'))} ({low} to {high})"
    return estimate(row, "speedup")


def shows_range(row: Row) -> bool:
    """Whether few processes and a host that holds the device up leave only their range to be shown."""
    return bool(row["host_bound_arms"]) and row["interval"] == "none" and row["speedup_min"] is not None


def percentiles(arm: str) -> Callable[[Row], str]:
    """`2.31 / 2.35 / 2.90`: wall milliseconds of single steps, each waited for."""
    names = [f"{arm}_{share}_ms" for share in ("p50", "p90", "p99")]
    return lambda row: " / ".join(figure(number(row, name)) for name in names if row[name] is not None)


def joules(arm: str) -> Callable[[Row], str]:
    return lambda row: figure(number(row, f"{arm}_energy_j"))


def host_bound_share(row: Row) -> str:
    """Share of wall time, of the arm where it is larger."""
    share = number(row, "host_bound_fraction")
    return "" if share is None else f"{100 * share:.0f} %"


def flagged(rows: Sequence[Row]) -> list[str]:
    """A line for each flag with the first few trials that have it, and for host_bound the arms that are."""
    axes = varying(rows, AXES)
    having: dict[str, list[Row]] = {}
    for row in rows:
        for flag in flags(row):
            having.setdefault(flag, []).append(row)
    lines = []
    for flag, found in sorted(having.items()):
        details = [_detail(flag, row) for row in found]
        if len(found) == len(rows) > 1 and len(set(details)) == 1:
            lines.append(f"{flag}: every trial{details[0]}")
        else:
            names = [trial_name(row, axes) + detail for row, detail in zip(found[:MAX_NAMES], details, strict=False)]
            lines.append(f"{flag}: {shortened(names, len(found))}")
    return lines


def _detail(flag: str, row: Row) -> str:
    return f" ({text(row['host_bound_arms'])})" if flag == "host_bound" and row["host_bound_arms"] else ""


def speedup_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of speedups.csv."""
    axes = [as_text(name) for name in varying(rows, AXES)]
    servers, texts = _known(rows, "eager_p50_ms"), _known(rows, "tokens_per_s")
    columns = (
        as_text("model"),
        *axes,
        as_text("precision"),
        as_text("mode"),
        Column[Row]("speedup", speedup_or_status),
        *(
            [Column[Row]("device", lambda row: estimate(row, "device_speedup"))]
            if _known(rows, "device_speedup")
            else []
        ),
        *([Column[Row]("host-bound", host_bound_share)] if any("host_bound" in flags(row) for row in rows) else []),
        Column[Row]("eager ms", lambda row: figure(number(row, "eager_step_ms"))),
        Column[Row]("compiled ms", lambda row: figure(number(row, "compiled_step_ms"))),
        *([Column[Row](f"{arm} p50 / p90 / p99 ms", percentiles(arm)) for arm in ARMS] if servers else []),
        *([Column[Row]("tokens/s", lambda row: figure(number(row, "tokens_per_s")))] if servers and texts else []),
        *([Column[Row](f"{arm} J", joules(arm)) for arm in ARMS] if _known(rows, "eager_energy_j") else []),
        Column[Row]("compile s", compile_time),
        Column[Row]("break-even steps", break_even),
        Column[Row]("memory ratio", memory_ratio),
    )
    columns = tuple(column for column in columns if column.name != "memory ratio" or any(map(memory_ratio, rows)))
    return (*columns, Column[Row]("flags", flags)) if any(map(flags, rows)) else columns


def what_columns_mean(columns: Iterable[Column[Row]]) -> str:
    """A line on the columns of speedups that their names do not explain."""
    meanings = {
        "speedup": "speedup is eager / compiled step time",
        "device": "device is the same ratio of the time in which the GPU was busy, which the host cannot disturb",
        "host-bound": "host-bound is the share of wall time in which the GPU waits for the host, in the worse arm",
        "eager J": "J is what the whole GPU uses in a step",
        "break-even steps": "after break-even steps, compiling has paid",
        "memory ratio": "memory ratio is eager / compiled peak: above 1, compiling saves",
    }
    line = "; ".join(meanings[column.name] for column in columns if column.name in meanings)
    return f"{line[:1].upper()}{line[1:]}."


def what_intervals_mean(rows: Sequence[Row]) -> str:
    """One line on the brackets and parentheses that the speedups show."""
    parts = [f"95 % intervals are {meaning}" for kind, meaning in _MEANINGS.items() if kind in map(_kind, rows)]
    parts += [meaning for kind, meaning in _WITHOUT.items() if kind in map(_kind, rows)]
    return "; ".join(parts) + "." if parts else ""


_MEANINGS = {
    "processes": "over processes that share one compiled artifact, and speak of that artifact alone",
    "processes of several draws": "over processes within their draws, and speak of these compiled artifacts alone",
    "draws": "over compile caches of their own (draws), so that the luck of autotuning is in them",
}


_WITHOUT = {
    "range": "(low to high) is the range of the processes of a host-bound trial: host noise may have two humps, which "
    f"an interval over fewer than {PROCESSES_IF_HOST_BOUND} processes often misses",
    "none": "a speedup without an interval comes from a single process and may move from run to run",
}


def _kind(row: Row) -> str | None:
    """What stands beside the speedup of a row: a key of the meanings above, None without a speedup."""
    if row["speedup"] is None:
        return None
    if row["interval"] == "processes" and (number(row, "draws") or 0) > 1:
        return "processes of several draws"
    return "range" if shows_range(row) else text(row["interval"])
