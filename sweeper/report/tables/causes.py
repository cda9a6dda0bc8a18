"""causes.csv: where time goes that compiling could have saved, dearest first, a row for each trial
and cause.

| column | meaning |
|---|---|
| `model batch_size workload precision mode backend variant trial_id` | the trial, of any status |
| `cause` | `host_bound`, `graph_break`, `recompile`, `cudagraph_skip`, `throttled` |
| `count` | how often it was seen; empty where it is a state and not an event |
| `lost_ms_per_step` | milliseconds of a compiled step, empty where nobody can tell |
| `lost_fraction` | the same as a share of the compiled step |
| `detail` | the compiler's reason and the place in the user's code |
| `reason fix` | the reason without a place, and what to do; the page groups causes by `cause` and \
`fix` |
| `sweep` | the name of the trial's sweep |

Only what the device waits for the host in the compiled arm has a price here: its share of waiting
times its step time. Graph breaks, skipped CUDA graphs and a busy host lie behind that waiting, so
their own shares cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sweeper.analysis.flags import FLAGS
from sweeper.analysis.meanings import CAUSES
from sweeper.core.backends import CONTROLS
from sweeper.core.libraries import SCRIPT
from sweeper.loading.entries import Entry
from sweeper.report.formatting import (
    TRIAL_AXES,
    axis_columns,
    figure,
    find_varying,
    finite,
    number,
    number_column,
    ratio,
    shorten_names,
    text,
    text_column,
    trial_name,
)
from sweeper.report.spec import Fold, TableSpec
from sweeper.report.table import MARKDOWN, PAGE, TERMINAL, Column, Row, Table, TextColumn, Value
from sweeper.report.tables import speedups
from sweeper.report.tables.candidates import NOISE

GRAPH_MODES = ("reduce-overhead", "max-autotune")  # they record CUDA graphs
WAITS = "the device waits for the host"
GRAPHS = "mode=reduce-overhead launches its kernels all at once"
LARGER_BATCH = "a larger batch gives the device more to do"
HAVE_PLACES = {"graph_break": "graph break", "cudagraph_skip": "skipped CUDA graph"}
MAX_TRIALS = 200  # that a cause on the page opens to
_AXES = ("model", "batch_size", "workload", "precision", "mode", "backend", "variant", "trial_id")


@dataclass(frozen=True)
class Cause:
    """One reason of one trial for time lost."""

    entry: Entry
    name: str
    detail: str
    reason: str
    fix: str
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
    Column(
        "lost_ms_per_step",
        lambda cause: None if cause.lost_s is None else cause.lost_s * 1e3,
        float,
    ),
    Column("lost_fraction", lambda cause: cause.lost_fraction, float),
    Column("detail", lambda cause: " | ".join(cause.detail.splitlines())),
    Column("reason", lambda cause: " | ".join(cause.reason.splitlines())),
    Column("fix", lambda cause: cause.fix),
    *speedups.select_columns(("sweep",), lambda cause: cause.entry),
)


def causes(entries: Iterable[Entry]) -> Table:
    """Put first what costs a larger share of its step, then what was seen more often."""
    found = [cause for entry in entries for cause in _find_causes(entry)]
    return Table.make(
        COLUMNS,
        sorted(found, key=lambda cause: (-(cause.lost_fraction or 0.0), -(cause.count or 0))),
    )


def _find_causes(entry: Entry) -> Iterator[Cause]:
    trial, result, diagnostics = entry.record.trial, entry.result, entry.record.diagnostics
    if trial.mode == "eager" or trial.backend in CONTROLS:  # nothing was to be gained
        return
    share, step_s = result.compiled_waits_fraction, result.compiled_step_s
    if share is not None and step_s and result.host_bound_arms in ("compiled", "both"):
        fix = GRAPHS if _can_record_graphs(entry) else LARGER_BATCH
        yield Cause(
            entry, "host_bound", _describe_waiting(entry), WAITS, fix, lost_s=share * step_s
        )
    if diagnostics is not None:
        for item in diagnostics.graph_breaks:
            where = f" at {item.where}" if item.where else ""
            yield Cause(
                entry,
                "graph_break",
                f"{item.reason}{where}",
                item.reason,
                _fix("graph_break"),
                item.count,
            )
        if diagnostics.recompiles:
            inspect = "" if trial.workload == SCRIPT else " or inspect=true"
            detail = f"TORCH_LOGS=recompiles{inspect} says why"
            yield Cause(
                entry,
                "recompile",
                detail,
                CAUSES["recompile"].says,
                _fix("recompile"),
                diagnostics.recompiles,
            )
    skips = entry.record.cudagraph_skips
    fix = (
        "Nothing: on a GPU this mode records them."
        if trial.device == "cpu"
        else _fix("cudagraph_skip")
    )
    for reason in dict.fromkeys(skips):
        yield Cause(entry, "cudagraph_skip", reason, reason, fix, skips.count(reason))
    if "throttled" in entry.flags:
        detail = "clocks were lowered in the rounds (power or heat)"
        yield Cause(entry, "throttled", detail, detail, _fix("throttled"))


def _fix(cause: str) -> str:
    return {**FLAGS, **CAUSES}[cause].todo.replace("`", "")


def _can_record_graphs(entry: Entry) -> bool:
    """Say whether another mode would record CUDA graphs, which this one does not."""
    trial = entry.record.trial
    has_graphs = trial.mode in GRAPH_MODES or "triton.cudagraphs" in trial.compile.options
    return trial.backend == "inductor" and not has_graphs


def _describe_waiting(entry: Entry) -> str:
    help_ = f"; {GRAPHS}" if _can_record_graphs(entry) else ""
    speedup = entry.result.device_speedup
    if speedup is None:
        return f"{WAITS}{help_}"
    return f"{WAITS}{help_}; the device alone is {speedup:.2f} times as fast as eager"


def _text_columns(rows: Sequence[Row], trials: Sequence[Row]) -> list[TextColumn]:
    """Choose the columns; the axes are those in which the trials of the sweep differ."""
    return [
        *(
            replace(column, media=(MARKDOWN, TERMINAL))
            for column in (
                text_column("model"),
                *axis_columns(trials or rows, TRIAL_AXES),
                *map(text_column, ("precision", "mode", "cause")),
                number_column("count", "count", lambda row: text(row["count"])),
                number_column("lost ms per step", "lost_ms_per_step"),
                text_column("detail"),
            )
        ),
        *(
            replace(column, media=(PAGE,))
            for column in (
                text_column("cause"),
                text_column("reason"),
                text_column("fix"),
                TextColumn(
                    "lost at most", _describe_loss, lambda row: number(row, "lost_fraction")
                ),
                number_column("trials", "trials", lambda row: text(row["trials"])),
                text_column("models"),
            )
        ),
    ]


def fold(rows: Sequence[Row]) -> list[Fold]:
    """Group causes by cause and fix; a group stands where its dearest row stood."""
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["cause"], row["fix"]), []).append(row)
    return [_fold(found) for found in groups.values()]


def _fold(rows: Sequence[Row]) -> Fold:
    dearest, axes = rows[0], find_varying(rows, TRIAL_AXES)
    models = list(dict.fromkeys(text(row["model"]) for row in rows))
    reasons: dict[str, set[Value]] = {}  # and the trials of each
    for row in rows:
        reasons.setdefault(text(row["reason"]), set()).add(
            (text(row["trial_id"]), text(row["sweep"]))
        )
    often = sorted(reasons.items(), key=lambda item: -len(item[1]))
    counted = [
        reason if len(often) == 1 else f"{reason} ({len(trials)})" for reason, trials in often
    ]
    row = {
        **dearest,
        "trials": len(set.union(*reasons.values())),
        "reason": shorten_names(counted, between="; "),
        "models": shorten_names(models),
    }
    parts = [(trial_name(row, axes), _describe(row)[1].lstrip(":, ")) for row in rows[:MAX_TRIALS]]
    return Fold(
        row,
        [*parts, ("and more", f"{len(rows) - MAX_TRIALS} in causes.csv")]
        if rows[MAX_TRIALS:]
        else parts,
    )


def _describe_loss(row: Row) -> str:
    """Describe what a trial loses, e.g. `10.3 ms per step (43 %)`."""
    lost_ms, share = number(row, "lost_ms_per_step"), number(row, "lost_fraction")
    return (
        f"{figure(lost_ms)} ms per step ({100 * (share or 0):.0f} %)" if lost_ms is not None else ""
    )


def _describe(row: Row) -> tuple[str, str]:
    """Describe a row, e.g. `host_bound`, `, 10.3 ms per step (43 %): the device waits for the
    host`.
    """
    cost = f", {loss}" if (loss := _describe_loss(row)) else ""
    count = number(row, "count")
    times = f", {count:.0f} {'time' if count == 1 else 'times'}" if count is not None else ""
    return text(row["cause"]), f"{cost}{times}: {text(row['detail'])}"


def explain(trial: Row, found: Sequence[Row]) -> list[str]:
    """Say why a trial, a row of speedups, is not faster; `found` are its rows of this table.

    Causes that have places are counted: whoever shows these lines shows the places too.
    """
    lines = [
        _explain_kernels(trial),
        *("".join(_describe(row)) for row in found if row["cause"] not in HAVE_PLACES),
    ]
    for cause, name in HAVE_PLACES.items():
        count = sum(number(row, "count") or 0 for row in found if row["cause"] == cause)
        lines.append(f"{count:.0f} {name}{'' if count == 1 else 's'}, see below" if count else "")
    return list(filter(None, lines))


def _explain_kernels(trial: Row) -> str:
    """Say that the device itself is not faster where that is so and known; else nothing."""
    speedup, by_device = finite(trial, "speedup"), finite(trial, "device_speedup")
    if speedup is None or by_device is None or max(speedup, by_device) > 1 + NOISE:
        return ""
    longer = "longer than" if by_device < 1 - NOISE else "about as long as"
    return (
        f"the compiled kernels take {longer} eager's (device speedup {ratio(by_device)}); "
        "inspect=true shows which are generated and which are library calls"
    )


SPEC = TableSpec(
    "causes",
    "Causes of lost time",
    lambda findings: causes(findings.entries),
    _text_columns,
    as_line=_describe,
    fold=fold,
    max_markdown_rows=50,
    max_terminal_rows=10,
)
