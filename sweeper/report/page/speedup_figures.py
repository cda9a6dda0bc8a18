"""Figures of speedups: every trial, backends, batch sizes.

Place in the flow: rows of speedups.csv `-> Figure`. `families`, `costs` and `steps` have the other figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page.figure_base import (
    MAX_CHARACTERS,
    Choice,
    Figure,
    Trace,
    colour,
    finite,
    label,
    line_at_one,
    lines,
    names,
    positive,
    ratio_axis,
)
from sweeper.report.table import Row
from sweeper.report.tables.speedups import shows_range, speedup_or_status

Hover = Callable[[Row], str]  # what a point says of its trial

MAX_BARS = 60  # of the forest as it opens
MAX_BARS_PER_GROUP = 200
MAX_BARS_EVER = 2000  # a browser takes seconds for more
MAX_MODELS = 100  # to choose from in the figure of backends
MAX_LINES = 300  # of the figure of batch sizes
MAX_CHOICES = 12
MAX_SERIES = 6

INTERVAL, RANGE, SINGLE = "95 % interval", "range of processes, host-bound", "no interval"
MARKS = {INTERVAL: "circle", RANGE: "diamond-open", SINGLE: "circle-open"}


def measured(rows: Sequence[Row]) -> list[Row]:
    """Rows with a speedup that can be drawn, the fastest first."""
    found = [(row, positive(row, "speedup")) for row in rows if row["status"] == "ok"]
    return [row for row, _ in sorted(((row, speedup) for row, speedup in found if speedup), key=lambda pair: -pair[1])]


def trial_hover(row: Row) -> str:
    """What a point says of its trial."""
    device, flags = formatting.estimate(row, "device_speedup"), ", ".join(formatting.flags(row))
    axes = [name for name in ("backend", "variant") if row[name]]
    return lines(
        label(f"{formatting.trial_name(row, axes)}, batch {text(row['batch_size'])}"),
        label(f"speedup {speedup_or_status(row)}"),
        label(f"device speedup {device}") if device else "",
        label(f"flags: {flags}", 90) if flags else "",
    )


def forest(rows: Sequence[Row], hover: Hover = trial_hover) -> Figure:
    """Every speedup with its interval, sorted."""
    title, found = "Speedups, sorted", measured(rows)
    if not found:
        return Figure("forest", title, missing="no trial has a speedup")
    if len(found) <= MAX_BARS:
        choices = [_forest_of("all", found, hover)]
    else:
        whole = f"all {len(found)}" if len(found) <= MAX_BARS_EVER else f"the {MAX_BARS_EVER} fastest of {len(found)}"
        ends = _both_ends("", found, MAX_BARS, hover)
        choices = [ends, *_forests_by_group(found, hover), _forest_of(whole, found[:MAX_BARS_EVER], hover)]
    caption = "Eager / compiled step time by wall clock, on a logarithmic axis; right of 1, compiling is faster."
    return Figure("forest", title, caption, tuple(choices))


def _both_ends(group: str, rows: Sequence[Row], most: int, hover: Hover) -> Choice:
    """The fastest and the slowest of more than `most` rows."""
    half = most // 2
    name = f"{half} fastest, {half} slowest of {len(rows)}"
    found = _forest_of(f"{group}: {name}" if group else name, [*rows[:half], *rows[-half:]], hover)
    found.layout["shapes"].append(_cut(half))
    return found


def _cut(above: int) -> dict[str, Any]:
    """A dotted line under the first `above` rows, where others are left out."""
    at = above - 0.5
    line = {"color": "@muted", "width": 1.2, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


def _forests_by_group(rows: Sequence[Row], hover: Hover) -> list[Choice]:
    """One for each precision, mode and backend, where there are several but not many."""
    axes = formatting.varying(rows, ("precision", "mode", "backend"))
    by_group: dict[str, list[Row]] = {}
    for row in rows:
        by_group.setdefault(" ".join(text(row[name]) for name in axes), []).append(row)
    if not 1 < len(by_group) <= MAX_CHOICES:
        return []
    return [
        _forest_of(f"{name}: {len(group)}", group, hover)
        if len(group) <= MAX_BARS_PER_GROUP
        else _both_ends(name, group, MAX_BARS_PER_GROUP, hover)
        for name, group in sorted(by_group.items())
    ]


def _forest_of(name: str, rows: Sequence[Row], hover: Hover) -> Choice:
    precisions = sorted({text(row["precision"]) for row in rows})
    labels, traces = names(rows), []
    for index, precision in enumerate(precisions):
        for mark, symbol in MARKS.items():
            at = [i for i, row in enumerate(rows) if text(row["precision"]) == precision and _mark(row) == mark]
            if at:
                traces.append(_points(f"{precision}, {mark}", [rows[i] for i in at], at, colour(index), symbol, hover))
    ends = [end for row in rows for end in _ends(row)]
    layout = {
        "height": 110 + 17 * len(rows),
        "xaxis": {**ratio_axis("speedup", ends), "side": "top"},
        "yaxis": {
            "range": [len(rows) - 0.5, -0.5],
            "tickvals": list(range(len(rows))),
            "ticktext": [label(item, MAX_CHARACTERS) for item in labels],
            "automargin": True,
            "showgrid": False,
        },
        "shapes": [line_at_one("x")],
    }
    return Choice(name, traces, layout)


def _points(name: str, rows: Sequence[Row], at: Sequence[int], shade: str, symbol: str, hover: Hover) -> Trace:
    speedups = [positive(row, "speedup") or 1.0 for row in rows]
    ends = [_ends(row) for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": speedups,
        "y": list(at),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - middle for (_, high), middle in zip(ends, speedups, strict=True)],
            "arrayminus": [middle - low for (low, _), middle in zip(ends, speedups, strict=True)],
            "color": shade,
            "thickness": 1.4,
            "width": 3,
            "visible": any(low < high for low, high in ends),
        },
        "marker": {"color": shade, "symbol": symbol, "size": 8, "line": {"color": shade, "width": 1.6}},
        "text": [hover(row) for row in rows],
        "hoverinfo": "text",
    }


def _mark(row: Row) -> str:
    if shows_range(row):
        return RANGE
    return INTERVAL if formatting.interval(row, "speedup") else SINGLE


def _ends(row: Row) -> tuple[float, float]:
    """Where its whiskers end; at the speedup itself where there are none."""
    middle = positive(row, "speedup") or 1.0
    bounds = {INTERVAL: ("speedup_low", "speedup_high"), RANGE: ("speedup_min", "speedup_max")}.get(_mark(row))
    low, high = (positive(row, name) for name in bounds) if bounds else (None, None)
    return (min(low, middle), max(high, middle)) if low and high else (middle, middle)


def backends(rows: Sequence[Row]) -> Figure:
    """Backends side by side: by model where there are few, else the most that can be said of all, geometric means."""
    title, compiled = "Backends", [row for row in rows if row["backend"]]
    tried = sorted({text(row["backend"]) for row in compiled})
    found = measured(compiled)
    if len(tried) < 2:
        return Figure("backends", title, missing="fewer than two backends were tried")
    if not found:
        return Figure("backends", title, missing="no backend gave a speedup")
    by_series: dict[str, list[Row]] = {}
    for row, name in zip(found, names(found, without="backend"), strict=True):
        by_series.setdefault(name, []).append(row)
    without = sorted({f"{text(row['backend'])} ({text(row['status'])})" for row in compiled if row["status"] != "ok"})
    caption = f"Speedup over eager. Not ok: {', '.join(without)}." if without else "Speedup over eager."
    if len(by_series) <= MAX_SERIES:
        return Figure("backends", title, caption, (_bars_of_backends("all", by_series),))
    shown = sorted(by_series, key=lambda name: (-len(by_series[name]), name))[:MAX_MODELS]
    if len(shown) < len(by_series):
        caption += f" {len(shown)} of {len(by_series)} to choose from: those in which most backends gave a speedup."
    choices = [_bars_of_backends(name, {name: by_series[name]}) for name in sorted(shown)]
    return Figure("backends", title, caption, tuple(choices))


def _bars_of_backends(name: str, series: Mapping[str, Sequence[Row]]) -> Choice:
    best: dict[str, float] = {}
    for rows in series.values():
        for row in rows:
            best[text(row["backend"])] = max(best.get(text(row["backend"]), 0.0), positive(row, "speedup") or 0.0)
    order = sorted(best, key=lambda backend: best[backend])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(title, 60),
            "x": [finite(row, "speedup") for row in rows],
            "y": [order.index(text(row["backend"])) for row in rows],
            "marker": {"color": colour(index)},
            "text": [formatting.ratio(finite(row, "speedup")) for row in rows],
            "textposition": "auto",
            "hovertext": [trial_hover(row) for row in rows],
            "hoverinfo": "text",
        }
        for index, (title, rows) in enumerate(series.items())
    ]
    ticks = {"tickvals": list(range(len(order))), "ticktext": [label(item, MAX_CHARACTERS) for item in order]}
    layout = {
        "height": 110 + len(order) * (18 + 14 * len(series)),
        "barmode": "group",
        "xaxis": {"title": {"text": "speedup"}, "rangemode": "tozero"},
        "yaxis": {**ticks, "automargin": True, "showgrid": False},
        "shapes": [line_at_one("x")],
    }
    return Choice(name, traces, layout)


def batch_sizes(rows: Sequence[Row]) -> Figure:
    """Speedup against batch size, a line for each model and setting that was measured at several."""
    title = "Speedup against batch size"
    series: dict[str, list[Row]] = {}
    found = measured(rows)
    for row, name in zip(found, names(found, without="batch_size"), strict=True):
        series.setdefault(name, []).append(row)
    several = {name: group for name, group in series.items() if len({row["batch_size"] for row in group}) > 1}
    if not several:
        return Figure("batch-sizes", title, missing="no model has speedups at two batch sizes")
    shown = sorted(several, key=lambda name: (-len(several[name]), name))[:MAX_LINES]
    ordered = [(name, several[name]) for name in sorted(shown)]
    parts = [ordered[start : start + MAX_SERIES] for start in range(0, len(ordered), MAX_SERIES)]
    choices = [_lines_of_batches(part) for part in parts]
    caption = "At which size compiling gives most."
    if len(ordered) < len(several):
        caption += f" {len(ordered)} of {len(several)} lines: those of most sizes."
    return Figure("batch-sizes", title, caption, tuple(choices))


def _lines_of_batches(series: Sequence[tuple[str, Sequence[Row]]]) -> Choice:
    traces, sizes = [], set()
    for index, (name, rows) in enumerate(series):
        ordered = sorted(rows, key=lambda row: finite(row, "batch_size") or 0)
        sizes |= {finite(row, "batch_size") for row in ordered}
        trace = _points(name, ordered, range(len(ordered)), colour(index), "circle", trial_hover)
        whiskers = trace.pop("error_x")
        traces.append(
            {
                **trace,
                "mode": "lines+markers",
                "x": [finite(row, "batch_size") for row in ordered],
                "y": trace["x"],
                "error_y": whiskers,
                "line": {"color": colour(index), "width": 1.8},
            }
        )
    ends = [end for _, rows in series for row in rows for end in _ends(row)]
    ticks = sorted(size for size in sizes if size is not None)
    xaxis = {"type": "log", "tickvals": ticks, "ticktext": [f"{size:g}" for size in ticks]}
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "batch size"}, **xaxis},
        "yaxis": ratio_axis("speedup", ends),
        "shapes": [line_at_one("y")],
    }
    return Choice(", ".join(name for name, _ in series[:2]) + (", …" if len(series) > 2 else ""), traces, layout)
