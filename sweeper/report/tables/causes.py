"""causes.csv: where time goes that compiling could have saved, dearest first, a row for each trial and cause.

| column | meaning |
|---|---|
| `model batch_size workload precision mode backend variant trial_id` | the trial, of any status |
| `cause` | `host_bound`, `graph_break`, `recompile`, `cudagraph_skip`, `throttled` |
| `count` | how often it was seen; empty where it is a state and not an event |
| `lost_ms_per_step` | milliseconds of a compiled step, empty where nobody can tell |
| `lost_fraction` | the same as a share of the compiled step |
| `detail` | the compiler's reason and the place in the user's code |

Only what the device waits for the host in the compiled arm has a price here: its share of waiting times its step time.
Graph breaks, skipped CUDA graphs and a busy host lie behind that waiting, so their own shares cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sweeper.core.backends import CONTROLS
from sweeper.loading.entries import Entry
from sweeper.report.formatting import axis_columns, figure, number, number_column, text, text_column
from sweeper.report.spec import TableSpec
from sweeper.report.table import Column, Row, Table, TextColumn
from sweeper.report.tables import speedups

GRAPH_MODES = ("reduce-overhead", "max-autotune")  # they record CUDA graphs
_AXES = ("model", "batch_size", "workload", "precision", "mode", "backend", "variant", "trial_id")


@dataclass(frozen=True)
class Cause:
    """One reason of one trial for time lost."""

    entry: Entry
    name: str
    detail: str
    count: int | None = None
    lost_s: float | None = None  # per step

    @property
    def lost_fraction(self) -> float | None:
        step_s = self.entry.result.compiled_step_s
        return self.lost_s / step_s if self.lost_s is not None and step_s else None


COLUMNS: tuple[Column[Cause], ...] = (
    *speedups.select_columns(_AXES, lambda cause: cause.entry),
    Column("cause", lambda cause: cause.name),
    Column("count", lambda cause: cause.count, int),
    Column("lost_ms_per_step", lambda cause: None if cause.lost_s is None else cause.lost_s * 1e3, float),
    Column("lost_fraction", lambda cause: cause.lost_fraction, float),
    Column("detail", lambda cause: " | ".join(cause.detail.splitlines())),
)


def causes(entries: Iterable[Entry]) -> Table:
    """Put first what costs a larger share of its step, then what was seen more often."""
    found = [cause for entry in entries for cause in _find_causes(entry)]
    return Table.make(COLUMNS, sorted(found, key=lambda cause: (-(cause.lost_fraction or 0.0), -(cause.count or 0))))


def _find_causes(entry: Entry) -> Iterator[Cause]:
    trial, result, diagnostics = entry.record.trial, entry.result, entry.record.diagnostics
    if trial.mode == "eager" or trial.backend in CONTROLS:  # nothing was to be gained
        return
    share, step_s = result.compiled_waits_fraction, result.compiled_step_s
    if share is not None and step_s and result.host_bound_arms in ("compiled", "both"):
        yield Cause(entry, "host_bound", _advise_on_waiting(entry), lost_s=share * step_s)
    if diagnostics is not None:
        for item in diagnostics.graph_breaks:
            where = f" at {item.where}" if item.where else ""
            yield Cause(entry, "graph_break", f"{item.reason}{where}", item.count)
        if diagnostics.recompiles:
            yield Cause(entry, "recompile", "TORCH_LOGS=recompiles or inspect=true says why", diagnostics.recompiles)
        for reason in dict.fromkeys(diagnostics.cudagraph_skips):
            yield Cause(entry, "cudagraph_skip", reason, diagnostics.cudagraph_skips.count(reason))
    if "throttled" in entry.flags:
        yield Cause(entry, "throttled", "clocks were lowered in the rounds (power or heat)")


def _advise_on_waiting(entry: Entry) -> str:
    trial, result = entry.record.trial, entry.result
    has_graphs = trial.mode in GRAPH_MODES or "triton.cudagraphs" in trial.compile.options
    can_help = trial.backend == "inductor" and not has_graphs
    help_ = "; mode=reduce-overhead launches its kernels all at once" if can_help else ""
    if result.by_device is None:
        return f"the device waits for the host{help_}"
    clock, speedup = result.by_device
    by = " by busy time" if clock == "busy" else ""
    return f"the device waits for the host{help_}; the device alone is {speedup:.2f} times as fast as eager{by}"


def _text_columns(rows: Sequence[Row], trials: Sequence[Row]) -> list[TextColumn]:
    """Choose the columns; the axes are those in which the trials of the sweep differ."""
    return [
        text_column("model"),
        *axis_columns(trials or rows),
        *map(text_column, ("precision", "mode", "cause")),
        number_column("count", "count", lambda row: text(row["count"])),
        number_column("lost ms per step", "lost_ms_per_step"),
        text_column("detail"),
    ]


def _describe(row: Row) -> tuple[str, str]:
    """Describe a row, e.g. `host_bound`, `, 10.3 ms per step (43 %): the device waits for the host`."""
    lost_ms, share = number(row, "lost_ms_per_step"), number(row, "lost_fraction")
    cost = f", {figure(lost_ms)} ms per step ({100 * (share or 0):.0f} %)" if lost_ms is not None else ""
    count = number(row, "count")
    times = f", {count:.0f} {'time' if count == 1 else 'times'}" if count is not None else ""
    return text(row["cause"]), f"{cost}{times}: {text(row['detail'])}"


SPEC = TableSpec(
    "causes",
    "Causes of lost time",
    lambda findings: causes(findings.entries),
    _text_columns,
    as_line=_describe,
    max_markdown_rows=50,
    max_terminal_rows=10,
)
