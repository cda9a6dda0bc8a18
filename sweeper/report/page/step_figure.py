"""The figure of step times in the order in which they were taken: first steps, then blocks of both arms.

Place in the flow: `Entry -> Figure`. A large sweep shows those trials that most need to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeper.loading.entries import Entry
from sweeper.loading.step_series import ProcessSeries
from sweeper.report.page.figure_base import Choice, Figure, Trace, axes_of_names, colour, label, name_of, seconds_axis
from sweeper.report.table import Row

MAX_TRIALS = 200
GAP = 2  # places between processes


def step_times(entries: Sequence[Entry], rows: Sequence[Row]) -> Figure:
    """`rows` are those of speedups.csv for `entries`, in the same order."""
    title = "Step times in order"
    axes = axes_of_names(rows)
    pairs = zip(entries, rows, strict=True)
    found = [(entry, row) for entry, row in pairs if any(series.positive for series in entry.series)]
    if not found:
        return Figure("step-times", title, missing="no trial got as far as a compiled step")
    shown = sorted(found, key=lambda pair: _calm(pair[0]))[:MAX_TRIALS]
    caption = (
        "On a logarithmic axis: the first compiled steps one by one, then the mean of each block of "
        "both arms, process by process."
    )
    if len(found) > MAX_TRIALS:
        caption += f" {MAX_TRIALS} of {len(found)} trials: unsteady ones first, then those whose device waits most."
    return Figure("step-times", title, caption, tuple(_choice(entry, name_of(row, axes)) for entry, row in shown))


def _calm(entry: Entry) -> tuple[bool, float]:
    return "unsteady" not in entry.flags, -(entry.result.host_bound_fraction or 0.0)


def _choice(entry: Entry, name: str) -> Choice:
    flags = f" ({', '.join(entry.flags)})" if entry.flags else ""
    places, at = [], 1
    for series in entry.series:
        places.append(at)
        at += len(series.first_s) + max(len(series.eager_s), len(series.compiled_s)) + GAP
    traces = _traces(entry.series, places)
    layout = {
        "height": 400,
        "xaxis": {
            "title": {"text": "in the order of measuring"},
            "tickvals": places,
            "ticktext": [_process_name(series) for series in entry.series],
            "showgrid": True,
        },
        "yaxis": seconds_axis("time a step", [y for trace in traces for y in trace["y"] if y is not None]),
    }
    return Choice(f"{name}{flags}", traces, layout)


def _process_name(series: ProcessSeries) -> str:
    void = f", {series.void} void" if series.void else ""
    return label(f"process {series.index}{', cold' if series.cold else ''}{void}")


def _traces(processes: Sequence[ProcessSeries], places: Sequence[int]) -> list[Trace]:
    """Three traces over all processes; None ends a line."""
    kinds: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for series, at in zip(processes, places, strict=True):
        blocks_at = at + len(series.first_s)
        parts = {
            "first compiled steps": (at, series.first_s),
            "eager, blocks": (blocks_at, series.eager_s),
            "compiled, blocks": (blocks_at, series.compiled_s),
        }
        for name, (start, values) in parts.items():
            xs, ys = kinds.setdefault(name, ([], []))
            xs += [*range(start, start + len(values)), None]
            ys += [*(value if value > 0 else None for value in values), None]
    styles: dict[str, dict[str, Any]] = {
        "first compiled steps": {"color": colour(0), "symbol": "circle-open"},
        "eager, blocks": {"color": colour(1), "symbol": "square"},
        "compiled, blocks": {"color": colour(0), "symbol": "circle"},
    }
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": xs,
            "y": ys,
            "marker": {**styles[name], "size": 8},
            "line": {"color": styles[name]["color"], "width": 1},
            "hoverinfo": "name+y",
        }
        for name, (xs, ys) in kinds.items()
        if any(y is not None for y in ys)
    ]
