"""The figure of step times in the order of measuring: first steps, then blocks of both arms.

For a large sweep it offers the trials that most need a look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sweeper.analysis.meanings import leave_out_housekeeping
from sweeper.loading.entries import Entry
from sweeper.loading.step_series import ProcessSeries
from sweeper.report.page import figure_base as base
from sweeper.report.table import Row

MAX_TRIALS = 200
GAP = 2  # places between processes
CAPTION = (
    "On a logarithmic axis: the first compiled steps one by one, then the mean of each block of "
    "both arms, "
    "process by process."
)
STYLES: Mapping[str, tuple[Callable[[Row], str], str]] = {  # colour and symbol
    "first compiled steps": (base.row_colour, "circle-open"),
    "eager, blocks": (base.eager_colour, "square"),
    "compiled, blocks": (base.row_colour, "circle"),
}


def draw_step_times(entries: Sequence[Entry], rows: Sequence[Row]) -> base.Figure:
    """Draw step times per trial; `rows` are the rows of speedups.csv for `entries`, in the same
    order.
    """
    title, axes = "Step times in order", base.find_naming_axes(rows)
    pairs = zip(entries, rows, strict=True)
    measured = [
        (entry, row) for entry, row in pairs if any(series.positive for series in entry.series)
    ]
    if not measured:
        return base.Figure("step-times", title, missing="no trial got as far as a compiled step")
    measured.sort(
        key=lambda pair: (
            "unsteady" not in pair[0].flags,
            -(pair[0].result.host_bound_fraction or 0.0),
        )
    )
    caption = CAPTION
    if len(measured) > MAX_TRIALS:
        caption += (
            f" {MAX_TRIALS} of {len(measured)} trials: unsteady ones first, then those "
            "whose device waits most."
        )
    choices = [
        _step_times(entry, row, base.name_row(row, axes)) for entry, row in measured[:MAX_TRIALS]
    ]
    return base.Figure("step-times", title, caption, choices)


def _step_times(entry: Entry, row: Row, name: str) -> base.Choice:
    """Draw three traces over all processes; None ends a line."""
    kinds: dict[str, tuple[list[int | None], list[float | None]]] = {
        name: ([], []) for name in STYLES
    }
    places, at = [], 1
    for series in entry.series:
        places.append(at)
        blocks_at = at + len(series.first_s)
        starts = (at, series.first_s), (blocks_at, series.eager_s), (blocks_at, series.compiled_s)
        for (xs, ys), (start, times_s) in zip(kinds.values(), starts, strict=True):
            xs += [*range(start, start + len(times_s)), None]
            ys += [*(time_s if time_s > 0 else None for time_s in times_s), None]
        at = blocks_at + max(len(series.eager_s), len(series.compiled_s)) + GAP
    markers = {
        kind: {"color": choose(row), "symbol": symbol} for kind, (choose, symbol) in STYLES.items()
    }
    traces = [
        base.points(
            kind, xs, ys, markers[kind], mode="lines+markers", line={"width": 1}, hoverinfo="name+y"
        )
        for kind, (xs, ys) in kinds.items()
        if any(y is not None for y in ys)
    ]
    processes = {"tickvals": places, "ticktext": [_name_process(series) for series in entry.series]}
    xaxis = {"title": {"text": "in the order of measuring"}, **processes, "showgrid": True}
    yaxis = base.seconds_axis(
        "time per step", [y for trace in traces for y in trace["y"] if y is not None]
    )
    flags = ", ".join(leave_out_housekeeping(entry.flags))
    return base.Choice(
        f"{name} ({flags})" if flags else name, traces, base.lay_out(400, xaxis, yaxis)
    )


def _name_process(series: ProcessSeries) -> str:
    void = f", {series.void} void" if series.void else ""
    return base.label(f"process {series.index}{', cold' if series.cold else ''}{void}")
