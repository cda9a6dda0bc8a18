"""speedups.csv: a row per trial, failed ones included.

Columns of figures are declared in `sweeper.analysis.metrics.METRICS`, which docs/metrics.md lists.
The others:

| column | meaning |
|---|---|
| `trial_id model family suite library` | the trial, the model as people call it, its labels, who \
builds it |
| `workload mode backend precision` | names of config options; `backend` is empty for mode=eager |
| `batch_size` | the one used; empty for a user's own script, which decides it |
| `variant` | every other axis that is not at its default, and the device type where the records \
at hand have several |
| `status flags` | one status; flags joined by `;` |
| `message` | the first line of what went wrong |
| `accuracy_reference accuracy_worst` | what the compiled step was compared with; its worst \
tensor, by error / bound |
| `accuracy_error accuracy_bound` | root mean squares against the reference: that tensor's, and \
what is allowed |
| `sweep` | the name of its folder |
| `accuracy_randomness accuracy_elements` | how a step that draws random numbers was judged; \
numbers compared |
| `attempts` | statuses of its earlier attempts, the oldest first, joined by `;` |
| `dropout` | whether it was on in training |
| `text` | the form in which texts came; empty for models without texts, and for trials that ended \
before they had any |
| `strongest_eager` | where the sweep has every eager rung of the ladder: the fastest one; see \
ladder.csv |
| `speedup_over_strongest_eager` | its step time / the compiled one, with `_low _high`; trials are \
compared unpaired |
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.analysis.flags import leave_out_housekeeping
from sweeper.analysis.metrics import METRICS, Metric
from sweeper.analysis.stats import Estimate
from sweeper.core.record import ARMS, PERCENTILES, Accuracy
from sweeper.loading.entries import Entry
from sweeper.report import formatting
from sweeper.report.formatting import (
    estimate,
    figure,
    flags,
    number,
    number_column,
    ratio,
    text,
    text_column,
)
from sweeper.report.spec import TableSpec
from sweeper.report.table import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Column,
    Row,
    Table,
    TextColumn,
    Value,
    estimate_columns,
)
from sweeper.report.tables.units import backend

NOT_KNOWN = "not known"  # of what the device has, and a trial could not tell

T = TypeVar("T")


def name_sweep(folder: Path) -> str:
    """Return the name of the folder itself; resolving every path takes ten times as long as asking
    for a link.
    """
    return (
        folder.resolve().name if folder.is_symlink() or folder.name in ("", "..") else folder.name
    )


def _accuracy_column(
    name: str, value: Callable[[Accuracy], Value], kind: type = float
) -> Column[Entry]:
    return Column(name, lambda entry: value(entry.worst) if entry.worst else None, kind)


def read_form(entry: Entry) -> str | None:
    """The form of texts that the model got."""
    diagnostics = entry.record.diagnostics
    if diagnostics is None or not entry.record.trial.has_texts:
        return None
    found = diagnostics.settings.get("text")
    return None if found is None else str(found)


def _over_strongest(entry: Entry) -> Estimate | None:
    return entry.over_strongest.speedup if entry.over_strongest else None


# Columns that are no metrics, by the metric that they stand before or behind. Names and order are a
# contract.
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
        Column("batch_size", lambda entry: entry.record.known_batch_size, int),
        Column("variant", lambda entry: entry.variant),
        Column("status", lambda entry: entry.record.status),
        Column("flags", lambda entry: entry.flags, tuple),
    ),
    "speedup_min": (
        Column(
            "message",
            lambda entry: next(filter(str.strip, (entry.record.message or "").splitlines()), None),
        ),
    ),
    "tokens_per_s": (
        _accuracy_column("accuracy_reference", lambda accuracy: accuracy.reference, str),
        _accuracy_column("accuracy_worst", lambda accuracy: accuracy.worst, str),
        _accuracy_column("accuracy_error", lambda accuracy: accuracy.compiled_error),
        _accuracy_column("accuracy_bound", lambda accuracy: accuracy.bound),
        Column("sweep", lambda entry: name_sweep(entry.folder.parent)),
    ),
}
_BEHIND: Mapping[str, tuple[Column[Entry], ...]] = {
    "compiled_energy_j": (
        _accuracy_column("accuracy_randomness", lambda accuracy: accuracy.randomness, str),
        _accuracy_column("accuracy_elements", lambda accuracy: accuracy.elements, int),
        Column(
            "attempts",
            lambda entry: tuple(attempt.status for attempt in entry.record.attempts),
            tuple,
        ),
        Column("dropout", lambda entry: entry.record.trial.model.dropout, bool),
        Column("text", read_form, str),
        Column(
            "strongest_eager",
            lambda entry: entry.over_strongest.eager if entry.over_strongest else None,
        ),
        *estimate_columns("speedup_over_strongest_eager", _over_strongest),
    ),
}


def _metric_column(metric: Metric) -> Column[Entry]:
    return Column(metric.csv_name, lambda entry: metric.column_value(entry.result), metric.kind)


def columns() -> Iterator[Column[Entry]]:
    """Yield the columns of speedups.csv in order."""
    for metric in METRICS:
        yield from _BEFORE.get(metric.name, ())
        yield _metric_column(metric)
        yield from _BEHIND.get(metric.name, ())


def select_columns(names: Iterable[str], get_entry: Callable[[T], Entry]) -> list[Column[T]]:
    """Make columns of speedups.csv for a table over items that have an entry."""

    def make(column: Column[Entry]) -> Column[T]:
        return Column(column.name, lambda item: column.value(get_entry(item)), column.kind)

    by_name = {column.name: column for column in columns()}
    return [make(by_name[name]) for name in names]


def speedups(entries: Iterable[Entry]) -> Table:
    return Table.make(tuple(columns()), entries)


def break_even(row: Row) -> str:
    """Show the steps until compiling has paid, e.g. `1,272 [1,250, 1,310]` or `never`; `≤` as in
    `compile_time`.
    """
    if number(row, "speedup") is None or number(row, "compile_cold_s") is None:
        return ""
    names = ("break_even_steps", "break_even_steps_low", "break_even_steps_high")
    steps, low, high = (
        "never" if (value := number(row, name)) is None else f"{math.ceil(value):,}"
        for name in names
    )
    bounds = f" [{low}, {high}]" if low != "never" else ""
    return f"{mark_upper_bound(row) if steps != 'never' else ''}{steps}{bounds}"


def compile_time(row: Row) -> str:
    """Show the seconds of compiling cold; `≤24.6` where others kept the processor busy
    meanwhile.
    """
    seconds = figure(number(row, "compile_cold_s"))
    return f"{mark_upper_bound(row)}{seconds}" if seconds else ""


def mark_upper_bound(row: Row) -> str:
    """Return `≤` where other processes lengthened the compile time, else an empty text."""
    return "≤" if "compile_contended" in flags(row) else ""


def memory_change(row: Row) -> str:
    """Show by how much the compiled peak lies above eager's, e.g. `+19 %`."""
    change = memory_change_percent(row)
    return (
        f"{round(change):+d} %"
        if change is not None
        else NOT_KNOWN
        if row["memory_missing"]
        else ""
    )


def memory_change_percent(row: Row) -> float | None:
    found = peak_ratio(row)
    return 100 * (1 / found - 1) if found else None


def peak_ratio(row: Row) -> float | None:
    """Divide eager by compiled peak memory of a trial that is ok; above 1, compiling saves."""
    eager, compiled = number(row, "eager_peak_memory_mib"), number(row, "compiled_peak_memory_mib")
    return eager / compiled if eager and compiled and row["status"] == "ok" else None


def host_share(row: Row) -> str:
    """Show the shares of both arms, e.g. `0.62 / 0.91`, with `?` for an unknown one; nothing where
    both are unknown.
    """
    shares = [ratio(number(row, f"{arm}_host_share")) for arm in ARMS]
    return " / ".join(share or "?" for share in shares) if any(shares) else ""


def speedup_or_status(row: Row) -> str:
    """Show `1.58 [1.55, 1.61]`, or the range of processes, `2.01 (1.89 to 2.12)`, where host noise
    has no interval.
    """
    if row["status"] != "ok":
        return text(row["status"])
    if shows_range(row):
        low, high = (ratio(number(row, name)) for name in ("speedup_min", "speedup_max"))
        return f"{ratio(number(row, 'speedup'))} ({low} to {high})"
    return estimate(row, "speedup")


def shows_range(row: Row) -> bool:
    """Return whether a host-bound trial has so few processes that only their range can be shown."""
    return (
        bool(row["host_bound_arms"])
        and row["interval"] == "none"
        and row["speedup_min"] is not None
    )


def find_common_flags(rows: Sequence[Row]) -> tuple[str, ...]:
    """Find the flags that every trial has which is ok, in alphabetical order; a single trial has
    none in common.
    """
    found = [set(flags(row)) for row in rows if row["status"] == "ok"]
    return tuple(sorted(set.intersection(*found))) if len(found) > 1 else ()


def name_common_flags(rows: Sequence[Row]) -> str:
    """Name the flags that no row has to repeat, e.g. `every trial: compile_contended, host_bound
    (both)`.
    """
    ok = [row for row in rows if row["status"] == "ok"]
    named = [
        f"{flag}{_name_arms(ok[0], flag) if _have_equal_arms(ok, flag) else ''}"
        for flag in find_common_flags(rows)
    ]
    return (
        f"every trial{'' if len(ok) == len(rows) else ' that is ok'}: {', '.join(named)}"
        if named
        else ""
    )


def _name_arms(row: Row, flag: str) -> str:
    """Name the arms that are host-bound, e.g. ` (compiled)`; other flags are of no arm."""
    return f" ({text(arms)})" if flag == "host_bound" and (arms := row["host_bound_arms"]) else ""


def _have_equal_arms(rows: Sequence[Row], flag: str) -> bool:
    return len({_name_arms(row, flag) for row in rows}) == 1


def list_flags(rows: Sequence[Row]) -> list[str]:
    """Make a line for each flag with the first few trials that have it, and for host_bound the arms
    that are.

    What `name_common_flags` says of the trials that are ok is left out.
    """
    axes, common = formatting.find_varying(rows, formatting.TRIAL_AXES), find_common_flags(rows)
    having: dict[str, list[Row]] = {}
    for row in rows:
        for flag in _select_flags(row, common):
            having.setdefault(flag, []).append(row)
    ok = [row for row in rows if row["status"] == "ok"]
    having |= {flag: ok for flag in common if not _have_equal_arms(ok, flag)}
    lines = []
    for flag, found in sorted(having.items()):
        names = [
            formatting.trial_name(row, axes) + _name_arms(row, flag)
            for row in found[: formatting.MAX_NAMES]
        ]
        lines.append(f"{flag}: {formatting.shorten_names(names, len(found))}")
    return lines


def _select_flags(row: Row, common: Collection[str]) -> tuple[str, ...]:
    """Select the flags that stand in a row: those in `common` stand above the table, for all trials
    that are ok.
    """
    return tuple(flag for flag in flags(row) if flag not in common or row["status"] != "ok")


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    latencies = [_percentile_column(arm) for arm in ARMS]
    latencies.append(number_column("tokens/s", "tokens_per_s", needs="tokens_per_s"))
    metrics = [
        number_column(
            metric.heading,
            metric.csv_name,
            meaning=f"{metric.heading} is {metric.meaning}",
            needs=metric.csv_name,
        )
        for metric in METRICS
        if metric.heading
    ]
    common = find_common_flags(rows)
    return [
        text_column("model", folds=True, is_name=True),
        *(text_column(name, media=(PAGE,)) for name in formatting.find_varying(rows, ["family"])),
        *formatting.axis_columns(rows, formatting.TRIAL_AXES),
        text_column("precision", is_name=True),
        text_column("mode", is_name=True),
        text_column("status", media=(PAGE,)),
        *_SPEEDUPS,
        _OVER_STRONGEST,
        *_choose_device(rows),
        *([_HOST_BOUND] if any("host_bound" in flags(row) for row in rows) else []),
        *([_HOST_SHARE] if any(map(host_share, rows)) else []),
        *(number_column(f"{arm} ms", f"{arm}_step_ms", align_right=True) for arm in ARMS),
        *(latencies if formatting.is_known(rows, "eager_p50_ms") else []),
        *_ENERGY,
        *metrics,
        *_COSTS,
        *([_MEMORY] if any(map(memory_change, rows)) else []),
        *([_GRAPH_BREAKS] if any(row["graph_breaks"] for row in rows) else []),
        *_make_flag_columns(rows, common),
    ]


def _make_flag_columns(rows: Sequence[Row], common: Collection[str]) -> list[TextColumn]:
    """Make the columns of flags; the page keeps housekeeping flags for the rows that are opened."""

    def select_for_page(row: Row) -> str:
        return ", ".join(leave_out_housekeeping(_select_flags(row, common)))

    columns = [
        TextColumn("flags", lambda row: _select_flags(row, common), media=(MARKDOWN,)),
        TextColumn("flags", select_for_page, media=(PAGE,)),
    ]
    return [column for column in columns if any(map(column.text, rows))]


def _choose_device(rows: Sequence[Row]) -> list[TextColumn]:
    """Choose the column of the device where a row has its speedup, or a reason why not."""
    return [_DEVICE] if any(map(_DEVICE.text, rows)) else []


def _show_device(row: Row) -> str:
    missing = NOT_KNOWN if row["device_time_missing"] else ""
    return estimate(row, "device_speedup") or missing


def _percentile_column(arm: str) -> TextColumn:
    """Make a column such as `2.31 / 2.35 / 2.90`: wall milliseconds of single steps, each waited
    for.
    """
    names = [f"{arm}_{share}_ms" for share in PERCENTILES]
    return TextColumn(
        f"{arm} {' / '.join(PERCENTILES)} ms",
        lambda row: " / ".join(
            figure(number(row, name)) for name in names if row[name] is not None
        ),
    )


def describe_rows(rows: Sequence[Row]) -> str:
    """Say what all trials have in common, or why there is nothing to see."""
    if not any(row["status"] == "ok" for row in rows):
        return "no trial is ok" if rows else "there are no records"
    axes, flagged = formatting.name_common_axes(rows), name_common_flags(rows)
    return "; ".join(
        [*([f"all trials: {axes}"] if axes else []), *([f"flags of {flagged}"] if flagged else [])]
    )


def explain_missing(rows: Sequence[Row]) -> list[str]:
    """Make a line for each reason why device time or memory is not known, with the first few
    trials.
    """
    axes, having = formatting.find_varying(rows, formatting.TRIAL_AXES), defaultdict(list)
    for row in rows:
        for what, name in (("device time", "device_time_missing"), ("memory", "memory_missing")):
            if row[name]:
                having[what, text(row[name])].append(formatting.trial_name(row, axes))
    return [
        f"{what} not known: {formatting.shorten_names(names)}: {reason}"
        for (what, reason), names in having.items()
    ]


def explain_intervals(rows: Sequence[Row]) -> str:
    """Explain the brackets and parentheses beside the speedups in one line."""
    kinds = set()
    for row in rows:
        if row["speedup"] is not None:
            several_draws = row["interval"] == "processes" and (number(row, "draws") or 0) > 1
            kinds.add(
                "range"
                if shows_range(row)
                else "several draws"
                if several_draws
                else row["interval"]
            )
    meanings = [meaning for kind, meaning in _INTERVALS.items() if kind in kinds]
    return "; ".join(meanings) + "." if meanings else ""


def _show_host_bound(row: Row) -> str:
    share = number(row, "host_bound_fraction")
    return (
        f"{100 * share:.0f} %"
        if share is not None
        else NOT_KNOWN
        if row["device_time_missing"]
        else ""
    )


_OVER = "95 % intervals are over"
_INTERVALS = {
    "processes": f"{_OVER} processes that share one compiled artifact, and speak of that artifact "
    "alone",
    "several draws": f"{_OVER} processes within their draws, and speak of these compiled artifacts "
    "alone",
    "draws": f"{_OVER} compile caches of their own (draws), and include autotuning variance",
    "range": "(low to high) is the range of the processes of a host-bound trial: host noise may "
    "have two humps, which "
    f"an interval over fewer than {MIN_PROCESSES_IF_HOST_BOUND} processes often misses",
    "none": "a speedup without an interval comes from a single process and may move from run "
    "to run",
}
_SPEEDUP_MEANING = "speedup is eager / compiled step time"
_SPEEDUPS = (
    number_column(
        "speedup",
        "speedup",
        speedup_or_status,
        meaning=_SPEEDUP_MEANING,
        media=(MARKDOWN, TERMINAL),
    ),
    number_column(  # beside the status
        "speedup",
        "speedup",
        lambda row: speedup_or_status(row) if row["status"] == "ok" else "",
        meaning=_SPEEDUP_MEANING,
        media=(PAGE,),
    ),
)
_DEVICE = number_column(
    "device",
    "device_speedup",
    _show_device,
    meaning="device is the same ratio of the time that the GPU itself needs, busy and in the gap "
    "that follows each kernel, which the host cannot disturb",
)
_OVER_STRONGEST = number_column(
    "over strongest eager",
    "speedup_over_strongest_eager",
    lambda row: estimate(row, "speedup_over_strongest_eager"),
    meaning="over strongest eager is the speedup over the fastest eager of the ladder",
    needs="speedup_over_strongest_eager",
)
_HOST_BOUND = number_column(
    "host-bound",
    "host_bound_fraction",
    _show_host_bound,
    meaning="host-bound is the share of wall time in which the GPU waits for the host, in the "
    "worse arm",
    align_right=True,
)
_HOST_SHARE = TextColumn(
    "host share",
    host_share,
    lambda row: max(
        (share for arm in ARMS if (share := number(row, f"{arm}_host_share"))), default=None
    ),
    meaning="host share is host time / device step time, eager / compiled: an arm above 1 waits "
    "for the host",
    align_right=True,
    media=(PAGE, MARKDOWN),
)
_ENERGY = (
    number_column(
        "eager J",
        "eager_energy_j",
        meaning="J is what the whole GPU uses in a step",
        needs="eager_energy_j",
    ),
    number_column("compiled J", "compiled_energy_j", needs="eager_energy_j"),
)
_COSTS = (
    number_column("compile s", "compile_cold_s", compile_time, align_right=True, is_cost=True),
    number_column(
        "break-even steps",
        "break_even_steps",
        break_even,
        meaning="after break-even steps, compiling has paid",
        align_right=True,
        is_cost=True,
    ),
)
_MEMORY = TextColumn(
    "memory",
    memory_change,
    memory_change_percent,
    meaning="memory is by how much compiling raises the peak: below 0 it saves",
    align_right=True,
    is_cost=True,
)
_GRAPH_BREAKS = number_column(
    "graph breaks", "graph_breaks", lambda row: text(row["graph_breaks"]), media=(PAGE,)
)

SPEC = TableSpec(
    "speedups",
    "Speedups",
    lambda findings: speedups(findings.entries),
    text_columns,
    arrange=formatting.sort_rows,
    lead=describe_rows,
    notes=lambda rows: [explain_intervals(rows), *explain_missing(rows)],
    terminal_notes=lambda rows: [
        *(column.meaning for column in _choose_device(rows)),
        *list_flags(rows),
    ],
    entries=lambda findings: findings.entries,
)
