"""Figures of speedups: every trial, backends, batch sizes; geometric means of families.

Families have AMP and fp32 beside each other, and what was published for PyTorch 2.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis.flags import UNVERIFIED, leave_out_housekeeping
from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page import figure_base as base
from sweeper.report.page.published import Published
from sweeper.report.table import Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.speedups import shows_range, speedup_or_status
from sweeper.report.tables.summary import count_models

MAX_BARS = 60  # of the forest as it opens
MAX_BARS_PER_GROUP = 200
MAX_BARS_EVER = 2000  # a browser takes seconds for more
MAX_MODELS = 100  # to choose from in the figure of backends
MAX_LINES = 300  # of the figure of batch sizes
MAX_CHOICES = 12
FAMILIES = (
    "Geometric means of speedups over the models of a family, with 95 % intervals for these "
    "models where known."
)
MAX_KEYS = 4  # groups of the summary that stand beside each other in one figure of families
MAX_SERIES = 6

INTERVAL, RANGE, SINGLE = "95 % interval", "range of processes, host-bound", "no interval"
NOT_VERIFIED = "result not verified"
MARKS = {
    INTERVAL: "circle",
    RANGE: "diamond-open",
    SINGLE: "circle-open",
    NOT_VERIFIED: "x-thin-open",
}
PRECISIONS = {"AMP": "geomean_amp", "fp32": "geomean_fp32"}


def select_measured(rows: Sequence[Row]) -> list[Row]:
    """Select the rows with a speedup that can be drawn, the fastest first."""
    measured = (row for row in rows if row["status"] == "ok" and base.positive(row, "speedup"))
    return sorted(measured, key=speedup, reverse=True)


def speedup(row: Row) -> float:
    """Return the speedup of a row that `select_measured` selected."""
    value = base.positive(row, "speedup")
    assert value is not None
    return value


def describe_trial(row: Row) -> str:
    """Describe the trial of a point, for a reader who hovers over the point."""
    flags = ", ".join(leave_out_housekeeping(formatting.flags(row)))
    device = formatting.estimate(row, "device_speedup")
    batch = f", batch {size}" if (size := text(row["batch_size"])) else ""
    return base.join_lines(
        base.label(f"{formatting.trial_name(row, ('backend', 'variant'))}{batch}"),
        base.label(f"speedup {speedup_or_status(row)}"),
        base.label(f"device speedup {device}") if device else "",
        base.label(f"flags: {flags}", 90) if flags else "",
    )


def draw_forest(rows: Sequence[Row]) -> base.Figure:
    """Draw every speedup with its interval, sorted."""
    title, measured = "Speedups, sorted", select_measured(rows)
    if not measured:
        return base.Figure("forest", title, missing="no trial has a speedup")
    count = len(measured)
    whole = f"all {count}" if count <= MAX_BARS_EVER else f"the {MAX_BARS_EVER} fastest of {count}"
    choices = [_forest("all" if count <= MAX_BARS else whole, measured[:MAX_BARS_EVER])]
    if count > MAX_BARS:
        choices = [_both_ends("", measured, MAX_BARS), *_forests_by_group(measured), *choices]
    caption = (
        "Eager / compiled step time by wall clock, on a logarithmic axis; right of 1, "
        "compiling is faster."
    )
    return base.Figure("forest", title, caption, choices)


def _forests_by_group(rows: Sequence[Row]) -> list[base.Choice]:
    """Draw a forest per precision, mode and backend, where there are several but not many."""
    axes = formatting.find_varying(rows, ("precision", "mode", "backend"))
    groups = base.group(rows, lambda row: " ".join(text(row[name]) for name in axes))
    if not 1 < len(groups) <= MAX_CHOICES:
        return []
    return [
        _both_ends(f"{name}: ", rows, MAX_BARS_PER_GROUP) for name, rows in sorted(groups.items())
    ]


def _both_ends(prefix: str, rows: Sequence[Row], max_rows: int) -> base.Choice:
    """Draw all rows, or of more than `max_rows` the fastest and the slowest with a dotted line
    between them.
    """
    if len(rows) <= max_rows:
        return _forest(f"{prefix}{len(rows)}", rows)
    half = max_rows // 2
    choice = _forest(
        f"{prefix}{half} fastest, {half} slowest of {len(rows)}", [*rows[:half], *rows[-half:]]
    )
    choice.layout["shapes"].append(base.reference_line("y", half - 0.5, dash="dot"))
    return choice


def _forest(name: str, rows: Sequence[Row]) -> base.Choice:
    axes = base.find_naming_axes(rows)
    kinds = base.group(range(len(rows)), lambda at: _name_kind(rows[at]))
    groups = base.group(range(len(rows)), lambda at: (_name_kind(rows[at]), _mark(rows[at])))
    several = len({text(row["mode"]) for row in rows}) > 1
    traces = []
    for (precision, mode), mark in (
        kind for kind in itertools.product(sorted(kinds), MARKS) if kind in groups
    ):
        at, shade = groups[(precision, mode), mark], base.choose_colour(mode, precision)
        title = f"{precision}, {mode}, {mark}" if several else f"{precision}, {mark}"
        traces.append(_speedups(title, [rows[i] for i in at], "x", at, shade, MARKS[mark]))
    xaxis = {
        **base.ratio_axis("speedup", [end for row in rows for end in _ends(row)]),
        "side": "top",
    }
    yaxis = {
        **base.names_axis([base.name_row(row, axes) for row in rows]),
        "range": [len(rows) - 0.5, -0.5],
    }
    return base.Choice(name, traces, base.lay_out(110 + 17 * len(rows), xaxis, yaxis, line="x"))


def _speedups(
    name: str,
    rows: Sequence[Row],
    axis: str,
    others: Sequence[float | None],
    shade: str,
    symbol: str = "circle",
) -> base.Trace:
    """Describe points with their intervals along `axis`, and `others` along the other axis."""
    speedups = [speedup(row) for row in rows]
    xs, ys = (speedups, others) if axis == "x" else (others, speedups)
    marker = {"color": shade, "symbol": symbol, "line": {"color": shade, "width": 1.6}}
    whiskers = {f"error_{axis}": base.error_bars(speedups, [_ends(row) for row in rows])}
    return base.points(name, xs, ys, marker, text=[describe_trial(row) for row in rows], **whiskers)


def _name_kind(row: Row) -> tuple[str, str]:
    return text(row["precision"]), text(row["mode"])


def _mark(row: Row) -> str:
    return NOT_VERIFIED if UNVERIFIED in formatting.flags(row) else _name_error_bar(row)


def _name_error_bar(row: Row) -> str:
    return (
        RANGE if shows_range(row) else INTERVAL if formatting.interval(row, "speedup") else SINGLE
    )


def _ends(row: Row) -> tuple[float, float]:
    """Return the ends of the error bar, which are the speedup itself where there is none."""
    middle = speedup(row)
    bounds = {INTERVAL: ("speedup_low", "speedup_high"), RANGE: ("speedup_min", "speedup_max")}.get(
        _name_error_bar(row)
    )
    low, high = (base.positive(row, name) for name in bounds) if bounds else (None, None)
    return (min(low, middle), max(high, middle)) if low and high else (middle, middle)


def draw_backends(rows: Sequence[Row]) -> base.Figure:
    """Draw the backends side by side: all models together where there are few, else a choice per
    model.
    """
    title, compiled = "Backends", [row for row in rows if row["backend"]]
    measured = select_measured(compiled)
    if len({text(row["backend"]) for row in compiled}) < 2:
        return base.Figure("backends", title, missing="fewer than two backends were tried")
    if not measured:
        return base.Figure("backends", title, missing="no backend gave a speedup")
    failed = sorted(
        {
            f"{text(row['backend'])} ({text(row['status'])})"
            for row in compiled
            if row["status"] != "ok"
        }
    )
    caption = (
        f"Speedup over eager. Not ok: {', '.join(failed)}." if failed else "Speedup over eager."
    )
    axes = base.find_naming_axes(measured, without="backend")
    series = base.group(measured, lambda row: base.name_row(row, axes))
    if len(series) <= MAX_SERIES:
        return base.Figure("backends", title, caption, [_backend_bars("all", series)])
    shown = _longest(series, MAX_MODELS)
    if len(shown) < len(series):
        caption += (
            f" {len(shown)} of {len(series)} to choose from: those in which most backends "
            "gave a speedup."
        )
    return base.Figure(
        "backends", title, caption, [_backend_bars(name, {name: series[name]}) for name in shown]
    )


def _longest(series: Mapping[str, Sequence[Row]], max_series: int) -> list[str]:
    """Name the series with the most rows, in alphabetical order."""
    return sorted(sorted(series, key=lambda name: (-len(series[name]), name))[:max_series])


def _backend_bars(name: str, series: Mapping[str, Sequence[Row]]) -> base.Choice:
    """Draw a bar per backend and series; the backend with the highest speedup stands on top."""
    by_backend = base.group(
        (row for rows in series.values() for row in rows), lambda row: text(row["backend"])
    )
    order = sorted(by_backend, key=lambda backend: max(map(speedup, by_backend[backend])))
    traces = []
    for index, (title, rows) in enumerate(series.items()):
        speedups, at = (
            [speedup(row) for row in rows],
            [order.index(text(row["backend"])) for row in rows],
        )
        style = {
            "orientation": "h",
            "textposition": "auto",
            "hovertext": [describe_trial(row) for row in rows],
        }
        shades = list(map(base.row_colour, rows))
        marker = base.fill(
            shades[0] if len(set(shades)) == 1 else shades, base.pick(base.PATTERNS, index)
        )
        traces.append(base.bars(title, speedups, at, marker, speedups, **style))
    height, xaxis = 110 + len(order) * (18 + 14 * len(series)), base.zero_axis("speedup")
    return base.Choice(
        name, traces, base.lay_out(height, xaxis, base.names_axis(order), line="x", barmode="group")
    )


def draw_batch_sizes(rows: Sequence[Row]) -> base.Figure:
    """Draw speedup against batch size, with a line per model and setting that was measured at
    several sizes.
    """
    title, measured = "Speedup against batch size", select_measured(rows)
    axes = base.find_naming_axes(measured, without="batch_size")
    series = base.group(measured, lambda row: base.name_row(row, axes))
    series = {
        name: line for name, line in series.items() if len({row["batch_size"] for row in line}) > 1
    }
    if not series:
        return base.Figure("batch-sizes", title, missing="no model has speedups at two batch sizes")
    shown = _longest(series, MAX_LINES)
    caption = "Shows at which batch size compiling gives most."
    if len(shown) < len(series):
        caption += f" {len(shown)} of {len(series)} lines: those of most sizes."
    parts = (shown[start : start + MAX_SERIES] for start in range(0, len(shown), MAX_SERIES))
    choices = [_batch_lines({name: series[name] for name in part}) for part in parts]
    return base.Figure("batch-sizes", title, caption, choices)


def _batch_lines(series: Mapping[str, Sequence[Row]]) -> base.Choice:
    rows = [row for line in series.values() for row in line]
    traces = []
    for index, (name, line) in enumerate(series.items()):
        ordered = sorted(line, key=lambda row: formatting.finite(row, "batch_size") or 0)
        sizes = [formatting.finite(row, "batch_size") for row in ordered]
        style = {
            "mode": "lines+markers",
            "line": {"width": 1.8, "dash": base.pick(base.DASHES, index)},
        }
        shade, symbol = base.row_colour(ordered[0]), base.pick(base.SYMBOLS, index)
        traces.append({**_speedups(name, ordered, "y", sizes, shade, symbol), **style})
    ticks = sorted(
        {size for row in rows if (size := formatting.finite(row, "batch_size")) is not None}
    )
    sizes_axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{size:g}" for size in ticks]}
    yaxis = base.ratio_axis("speedup", [end for row in rows for end in _ends(row)])
    layout = base.lay_out(420, {"title": {"text": "batch size"}, **sizes_axis}, yaxis, line="y")
    return base.Choice(
        ", ".join(list(series)[:2]) + (", …" if len(series) > 2 else ""), traces, layout
    )


def draw_families(
    rows: Sequence[Row], references: Mapping[str, Published], differences: str = ""
) -> base.Figure:
    """Draw geometric means in AMP and fp32 per family; `references` are published speedups by
    family.

    `differences` is a sentence on what ran otherwise for these.
    """
    keys = {key: list(group) for key, group in itertools.groupby(rows, formatting.key) if key}
    drawn = {
        key: rows
        for key, rows in keys.items()
        if any(row["geomean_amp"] or row["geomean_fp32"] for row in rows)
    }
    if not drawn:
        missing = "no geometric mean: no trial in a precision with a weight has a verified speedup"
        return base.Figure("families", "Families", missing=missing)
    caption = FAMILIES
    if references:
        caption += f" Dotted: what was published for PyTorch 2.0. {differences}"
    if len(drawn) <= MAX_KEYS:
        return base.Figure(
            "families", "Families", caption, [_family_bars("all", drawn, references)]
        )
    # The last row of a key is that of `all`.
    ordered = sorted(
        drawn.items(), key=lambda item: -(formatting.finite(item[1][-1], "geomean_amp") or 0.0)
    )
    choices = [_family_bars(key, {key: group}, references) for key, group in ordered]
    return base.Figure("families", "Families", caption, choices)


def _family_bars(
    name: str, keys: Mapping[str, Sequence[Row]], references: Mapping[str, Published]
) -> base.Choice:
    families = {text(row["family"]) for rows in keys.values() for row in rows}
    order = sorted(families, key=lambda family: (family == ALL, family))
    traces = []
    modes = [text(rows[0]["mode"]) for rows in keys.values()]
    for index, (key, rows) in enumerate(keys.items()):
        # of several keys with one mode
        pattern = base.pick(base.PATTERNS, modes[:index].count(modes[index]))
        for precision, geomean in PRECISIONS.items():
            if any(formatting.finite(row, geomean) is not None for row in rows):
                several = len(keys) > 1
                title = f"{precision}, {_shorten_key(key, keys)}" if several else precision
                marker = base.fill(base.choose_colour(modes[index], precision), pattern)
                places = [order.index(text(row["family"])) for row in rows]
                traces.append(_geomeans(title, rows, places, geomean, marker))
    shown = {at: references[family] for at, family in enumerate(order) if family in references}
    traces += [_dotted_lines(shown)] if shown else []
    ticks = [base.label(family, 20) for family in order]
    for at, item in shown.items():  # in three lines, which fit under a group of bars
        value, _, source = item.label.partition(" (")
        ticks[at] = base.join_lines(ticks[at], base.label(value), base.label(f"({source}"))
    places, ends = list(range(len(order))), [-0.6, len(order) - 0.4]
    xaxis = {"tickvals": places, "ticktext": ticks, "range": ends, "tickangle": 0}
    layout = base.lay_out(
        400, xaxis, base.zero_axis("speedup"), line="y", barmode="group", bargap=0.25
    )
    return base.Choice(name, traces, layout)


def _shorten_key(key: str, keys: Mapping[str, object]) -> str:
    """Keep the parts of a key in which it differs from the other keys."""
    common = set.intersection(*(set(item.split(", ")) for item in keys))
    return ", ".join(part for part in key.split(", ") if part not in common) or key


def _geomeans(
    name: str, rows: Sequence[Row], at: Sequence[int], geomean: str, marker: Mapping[str, Any]
) -> base.Trace:
    heights = [formatting.finite(row, geomean) for row in rows]
    ends = [
        (formatting.finite(row, f"{geomean}_low"), formatting.finite(row, f"{geomean}_high"))
        for row in rows
    ]
    known = [
        (low or height or 0.0, high or height or 0.0)
        for (low, high), height in zip(ends, heights, strict=True)
    ]
    titles = [base.label(f"{text(row['family'])}, {name}") for row in rows]
    means = [
        base.label(f"{formatting.estimate(row, geomean)} over {count_models(row, geomean)}")
        for row in rows
    ]
    hover = [base.join_lines(title, mean) for title, mean in zip(titles, means, strict=True)]
    style = {"textposition": "outside", "cliponaxis": False, "hovertext": hover}
    style["error_y"] = base.error_bars([height or 0.0 for height in heights], known)
    return base.bars(name, at, heights, marker, heights, **style)


def _dotted_lines(references: Mapping[int, Published]) -> base.Trace:
    """Describe a dotted line across the bars of each family, in the middle of the published
    range.
    """
    xs = [x for at in references for x in (at - 0.42, at + 0.42, None)]
    middles = [(item.low + item.high) / 2 for item in references.values()]
    ys = [y for middle in middles for y in (middle, middle, None)]
    texts = [
        base.label(f"published: {item.label}") for item in references.values() for _ in range(3)
    ]
    devices = ", ".join(dict.fromkeys(f"{item.device} {item.year}" for item in references.values()))
    line = {"dash": "dot", "width": 2.2, "color": "@ink"}
    return base.points(f"published ({devices})", xs, ys, {}, mode="lines", line=line, text=texts)
