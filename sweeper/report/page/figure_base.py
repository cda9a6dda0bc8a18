"""Traces and axes of the figures: plain dictionaries in the form of plotly.js
(https://plotly.com/javascript/reference/).

A colour is a mode in every figure (`choose_colour`), pale in fp32; patterns, dashes and symbols
tell apart what else differs. Colours are names (`@0` to `@7`, `@ink`, `@muted`, or pale: `@0
pale`); page.js replaces them with colours of the light or the dark scheme, and adds the style that
all figures share. Every text goes through `label`, because plotly takes HTML tags in texts for
markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweeper.core.text import printable
from sweeper.report import formatting
from sweeper.report.table import Row

T = TypeVar("T")
K = TypeVar("K")
Trace = dict[str, Any]
Layout = dict[str, Any]
Numbers = Sequence[float | None]
COLOURS = {  # numbers of page.css by mode
    "default": 0, "eager": 1, "reduce-overhead": 2, "max-autotune": 3,
    "max-autotune-no-cudagraphs": 4, "lite": 6,
}  # fmt: skip
OTHER_MODE = 5
# https://plotly.com/javascript/reference/bar/#bar-marker-pattern-shape,
# .../scatter/#scatter-line-dash
PATTERNS = ("", "/", "x", "-", "+", ".", "|", "\\")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "cross", "x")
MAX_CHARACTERS = 34  # of a name beside an axis
MAX_TICKS = 9
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5,
    1.75, 2.0, 2.5, 3.0,
    4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0,
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One way to draw a figure; `name` is plain text for a list to choose from."""

    name: str
    traces: Sequence[Trace]
    layout: Layout


@dataclass(frozen=True)
class Figure:
    """A figure. One that cannot be drawn has no choices, and `missing` says why."""

    id: str
    title: str
    caption: str = ""
    choices: Sequence[Choice] = ()
    missing: str = ""


def label(text: str, max_characters: int = 200) -> str:
    """Escape a text for plotly and shorten it to one line of `max_characters`."""
    line = printable(text)
    return (line if len(line) <= max_characters else f"{line[: max_characters - 1]}…").translate(
        _ENTITIES
    )


def join_lines(*parts: str) -> str:
    """Stack texts that went through `label`; empty texts are left out."""
    return "<br>".join(part for part in parts if part)


def choose_colour(mode: str, precision: str = "") -> str:
    """Name the colour of a mode, pale in fp32; a pale colour is half transparent, also in the
    legend.
    """
    return f"@{COLOURS.get(mode, OTHER_MODE)}{' pale' if precision.lower() == 'fp32' else ''}"


def row_colour(row: Row) -> str:
    """Name the colour of a trial's compiled arm, or of eager where that is all it ran."""
    return choose_colour(formatting.text(row["mode"]), formatting.text(row["precision"]))


def eager_colour(row: Row) -> str:
    """Name the colour of a trial's eager arm."""
    return choose_colour("eager", formatting.text(row["precision"]))


def list_shades(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """List the modes of a report, with eager, and the numbers of their colours in page.css."""
    modes = {formatting.text(row["mode"]) for row in rows}
    ordered = (
        sorted(modes | {"eager"}, key=lambda mode: (formatting.rank_mode(mode), mode))
        if modes
        else []
    )
    return [(mode, COLOURS.get(mode, OTHER_MODE)) for mode in ordered]


def pick(styles: Sequence[str], index: int) -> str:
    """Return a pattern, dash or symbol for the series at `index`; they repeat after the last."""
    return styles[index % len(styles)]


def positive(row: Row, name: str) -> float | None:
    """Return a number that a logarithmic axis can show."""
    value = formatting.finite(row, name)
    return value if value and value > 0 else None


def group(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, in the order in which the keys appear."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def find_naming_axes(rows: Sequence[Row], without: str = "") -> list[str]:
    """Find the axes in which the rows differ, except `without`; the batch size counts if a model
    has several.
    """
    axes = formatting.find_varying(rows, ("precision", "mode", *formatting.TRIAL_AXES))
    one_size = len({(row["model"], row["batch_size"]) for row in rows}) == len(
        {row["model"] for row in rows}
    )
    return [name for name in axes if name != without and not (one_size and name == "batch_size")]


def name_row(row: Row, axes: Iterable[str]) -> str:
    """Name a row by its model and its values of `axes`, e.g. `resnet50 amp default b32`."""
    values = {name: formatting.text(row[name]) for name in ("model", *axes)}
    return " ".join(
        f"b{value}" if name == "batch_size" else value for name, value in values.items() if value
    )


def points(name: str, xs: Numbers, ys: Numbers, marker: Mapping[str, Any], **more: Any) -> Trace:
    """Describe a trace of points, or of lines where `mode` says so."""
    shared = {"type": "scatter", "mode": "markers", "hoverinfo": "text"}
    return {
        **shared,
        "name": label(name),
        "x": xs,
        "y": ys,
        "marker": {"size": 8, **marker},
        **more,
    }


def bars(
    name: str, xs: Numbers, ys: Numbers, marker: Mapping[str, Any], values: Numbers, **more: Any
) -> Trace:
    """Describe a trace of bars with `values` written on the bars."""
    shared = {"type": "bar", "hoverinfo": "text", "marker": marker}
    texts = [formatting.ratio(value) for value in values]
    return {**shared, "name": label(name, 60), "x": xs, "y": ys, "text": texts, **more}


def fill(shade: str | Sequence[str], pattern: str = "") -> dict[str, Any]:
    """Describe the inside of bars: one colour for all or one for each, hatched where there is a
    pattern.
    """
    return {"color": shade} | (
        {"pattern": {"shape": pattern, "fillmode": "replace"}} if pattern else {}
    )


def error_bars(middles: Sequence[float], ends: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Describe error bars from the low to the high end of each interval."""
    pairs = list(zip(middles, ends, strict=True))
    above, below = (
        [high - middle for middle, (_, high) in pairs],
        [middle - low for middle, (low, _) in pairs],
    )
    return {"array": above, "arrayminus": below, "visible": any(low < high for low, high in ends)}


def names_axis(names: Sequence[str]) -> dict[str, Any]:
    """Describe an axis with a name at 0, 1, 2 and so on."""
    texts = [label(name, MAX_CHARACTERS) for name in names]
    return {
        "tickvals": list(range(len(names))),
        "ticktext": texts,
        "automargin": True,
        "showgrid": False,
    }


def ratio_axis(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """Describe a logarithmic axis, on which 2 and 1/2 are equally far from 1; it always shows 1."""
    logs = [math.log10(value) for value in values if value is not None and value > 0]
    low, high = min([0.0, *logs]), max([0.0, *logs])
    margin = max(0.06 * (high - low), 0.01)
    ticks = _choose_ticks(low - margin, high + margin)
    return _log_axis(title, low - margin, high + margin, ticks, [f"{tick:g}" for tick in ticks])


def _choose_ticks(low: float, high: float) -> list[float]:
    """Choose round numbers between two logarithms, with 1 among them and enough room between
    neighbours.
    """
    gap = (high - low) / MAX_TICKS
    chosen = [0.0]
    for at in sorted((math.log10(tick) for tick in _TICKS), key=abs):
        if low <= at <= high and all(abs(at - other) >= gap for other in chosen):
            chosen.append(at)
    return [round(10**at, 4) for at in sorted(chosen)]


def seconds_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """Describe a logarithmic axis with ticks at 1, 2 and 5, in milliseconds below one second, for
    positive seconds.
    """
    logs = [math.log10(value) for value in values]
    low, high = min(logs) - 0.08, max(logs) + 0.08
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    every = (factor * 10.0**power for power in range(-7, 6) for factor in factors)
    ticks = [tick for tick in every if low <= math.log10(tick) <= high]
    return _log_axis(
        title,
        low,
        high,
        ticks,
        [f"{tick:,g} s" if tick >= 1 else f"{1e3 * tick:g} ms" for tick in ticks],
    )


def _log_axis(
    title: str, low: float, high: float, ticks: Sequence[float], texts: Sequence[str]
) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "type": "log",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": texts,
    }


def zero_axis(title: str) -> dict[str, Any]:
    """Describe an axis that shows 0."""
    return {"title": {"text": title}, "rangemode": "tozero"}


def lay_out(
    height: int, xaxis: Mapping[str, Any], yaxis: Mapping[str, Any], line: str = "", **more: Any
) -> Layout:
    """Describe a figure with two axes, and a line where the axis `line` is 1."""
    shapes = {"shapes": [reference_line(line)]} if line else {}
    return {"height": height, "xaxis": xaxis, "yaxis": yaxis, **shapes, **more}


def reference_line(axis: str, at: float = 1, **style: Any) -> dict[str, Any]:
    """Describe a line across the figure where `axis` has a value, by default 1, where compiling
    changes nothing.
    """
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {
        "type": "line",
        "layer": "below",
        "line": {"color": "@muted", "width": 1.2, **style},
        **ends,
    }
