"""speedups.csv: a row per trial, failed ones included.

Columns of figures are declared in `sweeper.analysis.metrics.METRICS`, which docs/metrics.md lists. The others:

| column | meaning |
|---|---|
| `trial_id model family suite library` | the trial, the model as people call it, its labels, who builds it |
| `workload mode backend precision` | names of config options; `backend` is empty for mode=eager |
| `batch_size` | the one used |
| `variant` | every other axis that is not at its default, and the device type where the records at hand have several |
| `status flags` | one status; flags joined by `;` |
| `message` | the first line of what went wrong |
| `speedup_moderated_low speedup_moderated_high` | moderated t interval, see `cross_trial`; never printed |
| `accuracy_reference accuracy_worst` | what the compiled step was compared with; its worst tensor, by error / bound |
| `accuracy_error accuracy_bound` | root mean squares against the reference: that tensor's, and what is allowed |
| `sweep` | the name of its folder |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sweeper.analysis.metrics import METRICS, PROCESSES_IF_HOST_BOUND, Metric
from sweeper.core.record import ARMS, Accuracy
from sweeper.loading.entries import Entry
from sweeper.report.formatting import (
    AXES,
    MAX_NAMES,
    axis_columns,
    estimate,
    figure,
    flags,
    in_common,
    in_order,
    is_known,
    number,
    number_column,
    ratio,
    shortened,
    text,
    text_column,
    trial_name,
    varying,
)
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, PAGE, TERMINAL, Column, Row, Table, TextColumn, Value
from sweeper.report.tables.units import backend


def _accuracy_column(name: str, value: Callable[[Accuracy], Value], kind: type = float) -> Column[Entry]:
    return Column(name, lambda entry: value(entry.worst) if entry.worst else None, kind)


def _name_sweep(folder: Path) -> str:
    """The name of the folder itself; resolving every path takes ten times as long as asking whether it is a link."""
    return folder.resolve().name if folder.is_symlink() or folder.name in ("", "..") else folder.name


def _first_line(message: str | None) -> str | None:
    return next((line for line in (message or "").splitlines() if line.strip()), None)


# Columns that are no metrics, by the metric that they stand before. Names and order are a contract.
_BEFORE: Mapping[str, tuple[Column[Entry], ...]] = {
    "interval": (
        Column("trial_id", lambda entry: entry.record.trial_id),
        Column("model", lambda entry: entry.record.trial.labels.model),
        Column("family", lambda entry: entry.record.trial.labels.family),
        Column("suite", lambda entry: entry.record.trial.labels.suite),
        Column("library", lambda entry: entry.record.trial.model.library),
        Column("workload", lambda entry: entry.record.trial.workload),
        Column("mode", lambda entry: entry.record.trial.mode),
        Column("backend", backend),
        Column("precision", lambda entry: entry.record.trial.labels.precision),
        Column("batch_size", lambda entry: entry.record.batch_size, int),
        Column("variant", lambda entry: entry.variant),
        Column("status", lambda entry: entry.record.status),
        Column("flags", lambda entry: entry.flags, tuple),
    ),
    "speedup_min": (Column("message", lambda entry: _first_line(entry.record.message)),),
    "device_speedup_low": (
        Column("speedup_moderated_low", lambda entry: entry.moderated.low if entry.moderated else None, float),
        Column("speedup_moderated_high", lambda entry: entry.moderated.high if entry.moderated else None, float),
    ),
    "tokens_per_s": (
        _accuracy_column("accuracy_reference", lambda accuracy: accuracy.reference, str),
        _accuracy_column("accuracy_worst", lambda accuracy: accuracy.worst, str),
        _accuracy_column("accuracy_error", lambda accuracy: accuracy.compiled_error),
        _accuracy_column("accuracy_bound", lambda accuracy: accuracy.bound),
        Column("sweep", lambda entry: _name_sweep(entry.folder.parent)),
    ),
}


def _metric_column(metric: Metric) -> Column[Entry]:
    return Column(metric.column or metric.name, lambda entry: metric.column_value(entry.result), metric.kind)


def columns() -> Iterator[Column[Entry]]:
    for metric in METRICS:
        yield from _BEFORE.get(metric.name, ())
        yield _metric_column(metric)


def speedups(entries: Iterable[Entry]) -> Table:
    return Table.of(tuple(columns()), entries)


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


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    """The columns that people read; most figures have one only where some trial has them."""
    known = {name for name in rows[0] if is_known(rows, name)} if rows else set()
    found = [text_column("model", folds=True, is_name=True), text_column("family", media=(PAGE,)), *axis_columns(rows)]
    found += [text_column("precision", is_name=True), text_column("mode", is_name=True)]
    found += [text_column("status", media=(PAGE,)), _SPEEDUP, _SPEEDUP_ON_PAGE]
    if "device_speedup" in known:
        found.append(_DEVICE_SPEEDUP)
    if any("host_bound" in flags(row) for row in rows):
        found.append(_HOST_BOUND)
    found += [number_column(f"{arm} ms", f"{arm}_step_ms", align_right=True) for arm in ARMS]
    if "eager_p50_ms" in known:
        found += [TextColumn(f"{arm} p50 / p90 / p99 ms", percentiles(arm)) for arm in ARMS]
        found += [number_column("tokens/s", "tokens_per_s")] if "tokens_per_s" in known else []
    if "eager_energy_j" in known:
        found += [
            number_column(f"{arm} J", f"{arm}_energy_j", meaning=_ENERGY if arm == "eager" else "") for arm in ARMS
        ]
    found += [
        number_column(metric.heading, metric.column or metric.name, meaning=f"{metric.heading} is {metric.meaning}")
        for metric in METRICS
        if metric.heading and (metric.column or metric.name) in known
    ]
    found += [_COMPILE_TIME, _BREAK_EVEN]
    if any(map(memory_ratio, rows)):
        found.append(_MEMORY_RATIO)
    if any(row["graph_breaks"] for row in rows):
        found.append(
            number_column("graph breaks", "graph_breaks", lambda row: text(row["graph_breaks"]), media=(PAGE,))
        )
    return [*found, TextColumn("flags", flags, media=(PAGE, MARKDOWN))] if any(map(flags, rows)) else found


_ENERGY = "J is what the whole GPU uses in a step"
_RATIO = "speedup is eager / compiled step time"
_SPEEDUP = number_column("speedup", "speedup", speedup_or_status, meaning=_RATIO, media=(MARKDOWN, TERMINAL))
_SPEEDUP_ON_PAGE = number_column(  # beside the status
    "speedup",
    "speedup",
    lambda row: speedup_or_status(row) if row["status"] == "ok" else "",
    meaning=_RATIO,
    media=(PAGE,),
)
_DEVICE_SPEEDUP = number_column(
    "device",
    "device_speedup",
    lambda row: estimate(row, "device_speedup"),
    meaning="device is the same ratio of the time in which the GPU was busy, which the host cannot disturb",
)
_HOST_BOUND = number_column(
    "host-bound",
    "host_bound_fraction",
    host_bound_share,
    meaning="host-bound is the share of wall time in which the GPU waits for the host, in the worse arm",
    align_right=True,
)
_COMPILE_TIME = number_column("compile s", "compile_cold_s", compile_time, align_right=True, is_cost=True)
_BREAK_EVEN = number_column(
    "break-even steps",
    "break_even_steps",
    break_even,
    meaning="after break-even steps, compiling has paid",
    align_right=True,
    is_cost=True,
)
_MEMORY_RATIO = TextColumn(
    "memory ratio",
    memory_ratio,
    peak_ratio,
    meaning="memory ratio is eager / compiled peak: above 1, compiling saves",
    align_right=True,
    is_cost=True,
)


def say_what_is_shown(rows: Sequence[Row]) -> str:
    if not any(row["status"] == "ok" for row in rows):
        return "no trial is ok" if rows else "there are no records"
    return f"all trials: {common}" if (common := in_common(rows)) else ""


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


SPEC = TableSpec(
    "speedups",
    "Speedups",
    lambda findings: speedups(findings.entries),
    text_columns,
    arrange=in_order,
    lead=say_what_is_shown,
    notes=lambda rows: [what_intervals_mean(rows)],
    terminal_notes=flagged,
    entries=lambda findings: findings.entries,
)
