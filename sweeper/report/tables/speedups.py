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
| `accuracy_randomness accuracy_elements` | how a step that draws random numbers, or differs from \
itself, was judged; numbers compared |
| `attempts` | statuses of its earlier attempts, the oldest first, joined by `;` |
| `dropout` | whether it was on in training; of a script what was seen, empty where that is not \
known |
| `text` | the form in which texts came; empty for models without texts, and for trials that ended \
before they had any |
| `strongest_eager` | where the sweep has every eager rung of the ladder: the fastest one; see \
ladder.csv |
| `speedup_over_strongest_eager` | its step time / the compiled one, with `_low _high`; trials are \
compared unpaired |
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.analysis.flags import leave_out_housekeeping
from sweeper.analysis.metrics import METRICS
from sweeper.analysis.stats import ratio_of
from sweeper.core.record import ARMS, PERCENTILES, Accuracy
from sweeper.loading.entries import Entry, OverStrongest
from sweeper.loading.environment import read_text_form
from sweeper.report.answers import speedups
from sweeper.report.answers.candidates import find_candidate
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.speedups import NOT_KNOWN, is_ok, select_flags
from sweeper.report.answers.trials import name_common_axes, rank_trial
from sweeper.report.columns.cell import Value
from sweeper.report.columns.column import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Column,
    estimate_columns,
    lift,
    show_row,
)
from sweeper.report.columns.formats import join, percent, prefix

from .spec import TableSpec
from .trials import TRIAL_COLUMNS, metric_column

HOST_BOUND = "host-bound"  # titles of columns that are shown for some reports only
GRAPH_BREAKS = "graph breaks"
TOKENS = "tokens/s"
_OVER = "95 % intervals are over"
INTERVALS = {
    "processes": f"{_OVER} processes that share one compiled artifact, and speak of that artifact "
    "alone",
    "several draws": f"{_OVER} processes within their draws, and speak of these compiled artifacts "
    "alone",
    "draws": f"{_OVER} compile caches of their own (draws), and include autotuning variance",
    "range": "(low to high) is the range of the processes of a host-bound trial: host noise may "
    "have two humps, which an interval over fewer than "
    f"{MIN_PROCESSES_IF_HOST_BOUND} processes often misses",
    "none": "a speedup without an interval comes from a single process and may move from run to "
    "run",
}


_METRICS = {metric.name: metric for metric in METRICS}


def _shown(name: str, title: str, **more: Any) -> Column[Entry]:
    """Make the column of a metric that people see in a form of its own."""
    return replace(metric_column(_METRICS[name]), title=title, **more)


def _show_device(entry: Entry) -> str:
    shown = speedups.show_device_speedup(entry)
    if not shown and entry.result.device_time_missing:
        return NOT_KNOWN
    return shown


def _show_host_bound(entry: Entry) -> str:
    share = entry.result.host_bound_fraction
    if share is not None:
        return percent(share)
    if entry.result.device_time_missing:
        return NOT_KNOWN
    return ""


def _percentile_column(arm: str) -> Column[Entry]:
    """Make a column such as `2.31 / 2.35 / 2.90`: wall milliseconds of single steps, each waited
    for.
    """
    columns = [metric_column(_METRICS[f"{arm}_{share}_s"]) for share in PERCENTILES]
    title = f"{arm} {' / '.join(PERCENTILES)} ms"
    return Column("", lambda entry: join(show_row(columns, entry), " / "), title=title)


LATENCIES = tuple(map(_percentile_column, ARMS))
_MEANING = "speedup is eager / compiled step time"
_MEANING_OF_DEVICE = (
    "device is eager / compiled device step time: the GPU's busy time and its own gap after each "
    "kernel, which the host does not affect"
)
# The columns that people see, in their order.
SHOWN: tuple[Column[Entry], ...] = (
    _shown(
        "speedup",
        "speedup",
        text=lambda entry: speedups.show_speedup(entry) if entry.is_ok else entry.record.status,
        meaning=_MEANING,
        media=(MARKDOWN, TERMINAL),
    ),
    Column(  # beside the status
        "",
        lambda entry: ratio_of(entry.result.loop_speedup or entry.result.speedup),
        float,
        title="speedup",
        text=speedups.show_speedup,
        meaning=_MEANING,
        media=(PAGE,),
    ),
    *estimate_columns(
        "speedup_over_strongest_eager",
        lambda entry: entry.over_strongest and entry.over_strongest.speedup,
        title="over strongest eager",
        meaning="over strongest eager is the speedup over the fastest eager of the ladder",
    ),
    _shown(
        "device_speedup",
        "device",
        text=_show_device,
        meaning=_MEANING_OF_DEVICE,
    ),
    _shown(
        "host_bound_fraction",
        HOST_BOUND,
        text=_show_host_bound,
        meaning="host-bound is the share of wall time in which the GPU waits for the host, in the "
        "worse arm",
        align_right=True,
    ),
    Column(
        "",
        lambda entry: entry.result.host_share.largest,
        float,
        title="host share",
        text=speedups.show_host_share,
        meaning="host share is host time / device step time, eager / compiled: an arm above 1 "
        "waits for the host",
        align_right=True,
        media=(PAGE, MARKDOWN),
    ),
    _shown("eager_step_s", "eager step ms", align_right=True),
    _shown("compiled_step_s", "compiled step ms", align_right=True),
    *LATENCIES,
    _shown("tokens_per_s", TOKENS),
    _shown(
        "eager_energy_j",
        "eager J",
        meaning="J is what the whole GPU uses in a step",
    ),
    _shown("compiled_energy_j", "compiled J"),
    _shown(
        "compile_cold_s",
        "compile s",
        text=speedups.show_compile_time,
        align_right=True,
        is_cost=True,
    ),
    _shown(
        "break_even_steps",
        "break-even steps",
        text=speedups.show_break_even,
        meaning="after break-even steps, compiling has paid",
        align_right=True,
        is_cost=True,
    ),
    Column(
        "",
        speedups.memory_change_percent,
        float,
        title="memory",
        text=speedups.show_memory_change,
        meaning="memory is the change of the peak: below 0, compiling saves memory",
        align_right=True,
        is_cost=True,
    ),
    _shown("graph_breaks", GRAPH_BREAKS, media=(PAGE,)),
)


def _of_accuracy(name: str, read: Callable[[Accuracy], Value], kind: type = float) -> Column[Entry]:
    return lift(Column(name, read, kind), lambda entry: entry.worst)


def _read_message(entry: Entry) -> str | None:
    return next(filter(str.strip, (entry.record.message or "").splitlines()), None)


def _read_dropout(entry: Entry) -> bool | None:
    seen = entry.result.seen_of_script
    return seen.dropout if seen else entry.trial.model.dropout


OTHERS: tuple[Column[Entry], ...] = (
    Column("message", _read_message),
    _of_accuracy("accuracy_reference", lambda accuracy: accuracy.reference, str),
    _of_accuracy("accuracy_worst", lambda accuracy: accuracy.worst, str),
    _of_accuracy("accuracy_error", lambda accuracy: accuracy.compiled_error),
    _of_accuracy("accuracy_bound", lambda accuracy: accuracy.bound),
    _of_accuracy("accuracy_randomness", lambda accuracy: accuracy.randomness, str),
    _of_accuracy("accuracy_elements", lambda accuracy: accuracy.elements, int),
    Column(
        "attempts",
        lambda entry: tuple(attempt.status for attempt in entry.record.attempts),
        tuple,
    ),
    Column("dropout", _read_dropout, bool),
    Column("text", lambda entry: read_text_form(entry.record)),
    lift(
        Column[OverStrongest]("strongest_eager", lambda found: found.eager),
        lambda entry: entry.over_strongest,
    ),
)


class SpeedupsTable(TableSpec[Entry]):
    name = "speedups"
    title = "Speedups"
    place = 80
    shows_causes = True

    def items(self, findings: Findings) -> Sequence[Entry]:
        return findings.entries

    @property
    def columns(self) -> Sequence[Column[Entry]]:
        shown = {column.name for column in SHOWN}
        others = [metric_column(metric) for metric in METRICS if metric.csv_name not in shown]
        return [*TRIAL_COLUMNS, *SHOWN, *others, *OTHERS]

    def arrange(self, items: Sequence[Entry]) -> Sequence[Entry]:
        return sorted(items, key=rank_trial)

    def shown(self, items: Sequence[Entry], findings: Findings, medium: str) -> list[Column[Entry]]:
        needed = {
            HOST_BOUND: any("host_bound" in entry.flags for entry in items),
            GRAPH_BREAKS: any(entry.result.graph_breaks for entry in items),
            TOKENS: any(map(LATENCIES[0].show, items)),
        }
        columns = super().shown(items, findings, medium)
        shown = [column for column in columns if needed.get(column.title, True)]
        common = speedups.find_common_flags(items)

        def show_flags(entry: Entry) -> str:
            flags = select_flags(entry, common)
            if medium == PAGE:  # keeps housekeeping flags for the rows that are opened
                return ", ".join(leave_out_housekeeping(flags))
            return ";".join(flags)

        if medium != TERMINAL and any(map(show_flags, items)):
            shown.append(Column("", show_flags, title="flags"))
        return shown

    def lead(self, findings: Findings) -> str:
        """Say what all trials have in common, or why there is nothing to see."""
        entries = findings.entries
        if not entries:
            return "there are no records"
        if not any(map(is_ok, entries)):
            return "no trial is ok"
        axes, flagged = name_common_axes(entries), speedups.name_common_flags(entries)
        return join((prefix("all trials: ", axes), prefix("flags of ", flagged)))

    def notes(self, findings: Findings) -> Sequence[str]:
        entries = findings.entries
        return [
            explain_intervals(entries),
            *speedups.describe_scaling(entries),
            *speedups.explain_missing(entries),
        ]

    def terminal_notes(self, findings: Findings) -> Iterator[str]:
        if any(map(_show_device, findings.entries)):
            yield _MEANING_OF_DEVICE
        yield from speedups.list_flags(findings.entries)

    def entry(self, item: Entry) -> Entry:
        return item


def explain_intervals(entries: Sequence[Entry]) -> str:
    """Explain the brackets and parentheses beside the speedups in one line."""
    kinds = set()
    for entry in entries:
        result, one = entry.result, find_candidate(entry)
        kind = result.interval
        if one and one.gain.by_range:
            kind = "range"
        elif kind == "processes" and result.draws > 1:
            kind = "several draws"
        if result.speedup is not None:
            kinds.add(kind)
    if not kinds:
        return ""
    return f"{'; '.join(INTERVALS[kind] for kind in INTERVALS if kind in kinds)}."
