"""Traces and axes of the figures: plain dictionaries in the form of plotly.js
(https://plotly.com/javascript/reference/).

A colour is a mode in every figure (`choose_colour`), pale in fp32; patterns, dashes and symbols
tell apart what else differs. Colours are names (`@0` to `@7`, `@ink`, `@muted`, or pale: `@0
pale`); page.js replaces them with colours of the light or the dark scheme, and adds the style that
all figures share. Every text goes through `label`, because plotly takes HTML tags in texts for
markup.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweeper.analysis.stats import Estimate
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.report.answers.trials import (
    NAMING_AXES,
    find_varying,
    name_by,
    rank_mode,
    show_axis,
)
from sweeper.report.columns.formats import ratio, shorten

T = TypeVar("T")
K = TypeVar("K")
Trace = dict[str, Any]
Part = dict[str, Any]  # an axis, a line across a figure, a layout, or the inside of a mark
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
NO_BAR = "none"  # plotly draws no error bar if its length is no number, and takes null for 0
_TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5,
    1.75, 2.0, 2.5, 3.0,
    4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0,
)  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """One way to draw a figure; `name` is plain text for a list to choose from."""

    name: str
    traces: Sequence[Trace]
    height: int  # in pixels
    layout: Part


@dataclass(frozen=True)
class Figure:
    """A figure. `missing` says why it is left out where it has no drawings."""

    id: str
    title: str
    caption: str = ""
    drawings: Sequence[Drawing] = ()
    missing: str = ""


def label(text: str, max_characters: int = 200) -> str:
    """Escape a text for plotly and shorten it to one line of `max_characters`."""
    return html.escape(shorten(printable(text), max_characters), quote=False)


def stack(*lines: str) -> str:
    """Escape texts and put those that are not empty below each other."""
    return "<br>".join(map(label, filter(None, lines)))


def choose_colour(mode: str, precision: str) -> str:
    """Name the colour of a mode, pale in fp32; a pale colour is half transparent, also in the
    legend.
    """
    colour = f"@{COLOURS.get(mode, OTHER_MODE)}"
    return f"{colour} pale" if precision.lower() == "fp32" else colour


def compiled_colour(entry: Entry) -> str:
    """Name the colour of a trial's compiled arm, or of eager where that is all it ran."""
    return choose_colour(show_axis(entry, "mode"), show_axis(entry, "precision"))


def list_shades(entries: Iterable[Entry]) -> list[tuple[str, int]]:
    """List the modes of a report, with eager, and the numbers of their colours in page.css."""
    modes = {show_axis(entry, "mode") for entry in entries}
    if modes:
        modes.add("eager")
    ordered = sorted(modes, key=lambda mode: (rank_mode(mode), mode))
    return [(mode, COLOURS.get(mode, OTHER_MODE)) for mode in ordered]


def name_first(names: Sequence[str]) -> str:
    """Name the first two series of a drawing."""
    more = ", …" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{more}"


def pick(styles: Sequence[str], index: int) -> str:
    """Return a pattern, dash or symbol for the series at `index`; they repeat after the last."""
    return styles[index % len(styles)]


def name_entries(entries: Sequence[Entry], without: str = "") -> list[str]:
    """Name each trial by its model and the axes in which trials differ, except `without`, e.g.
    `resnet50 amp default 32`.
    """
    axes = [axis for axis in find_varying(entries, NAMING_AXES) if axis != without]
    return [name_by(entry, axes) for entry in entries]


def points(name: str, xs: Numbers, ys: Numbers, marker: Part, **more: Any) -> Trace:
    """Describe a trace of points, or of lines where `mode` says so."""
    return {
        "type": "scatter",
        "mode": "markers",
        "hoverinfo": "text",
        "name": label(name),
        "x": xs,
        "y": ys,
        "marker": {"size": 8, **marker},
        **more,
    }


def bars(
    name: str,
    xs: Numbers,
    ys: Numbers,
    shades: Sequence[str],
    pattern: str,
    values: Numbers,
    **more: Any,
) -> Trace:
    """Describe a trace of bars with `values` written on the bars: in one colour or one for each,
    hatched where there is a pattern.
    """
    marker: Part = {"color": shades[0] if len(set(shades)) == 1 else shades}
    if pattern:
        marker |= {"pattern": {"shape": pattern, "fillmode": "replace"}}
    return {
        "type": "bar",
        "hoverinfo": "text",
        "marker": marker,
        "name": label(name, 60),
        "x": xs,
        "y": ys,
        "text": list(map(ratio, values)),
        **more,
    }


def estimate_bars(
    name: str,
    places: Numbers,
    estimates: Sequence[Estimate | None],
    shades: Sequence[str],
    pattern: str,
    hover: Sequence[str],
) -> Trace:
    """Describe a trace of bars with their intervals, a gap for each estimate that is missing."""
    heights: list[float | None] = []
    ends = []
    for estimate in estimates:
        low = middle = high = estimate.ratio if estimate else 0.0
        bounds = estimate and estimate.interval()
        if bounds:
            low, high = bounds
        heights.append(middle or None)
        ends.append((low, middle, high))
    style = {"textposition": "outside", "cliponaxis": False, "hovertext": hover}
    whiskers = error_bars(ends)
    return bars(name, places, heights, shades, pattern, heights, error_y=whiskers, **style)


def error_bars(ends: Iterable[tuple[float, float, float]]) -> dict[str, Any]:
    """Describe error bars by the low end, the middle and the high end of each interval; what has
    one value alone has no bar.
    """
    above: list[float | str] = []
    below: list[float | str] = []
    for low, middle, high in ends:
        if low < high:
            above.append(high - middle)
            below.append(middle - low)
        else:
            above.append(NO_BAR)
            below.append(NO_BAR)
    is_visible = any(length != NO_BAR for length in above)
    return {"array": above, "arrayminus": below, "visible": is_visible}


def names_axis(names: Sequence[str]) -> Part:
    """Describe an axis with a name at 0, 1, 2 and so on."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [label(name, MAX_CHARACTERS) for name in names],
        "automargin": True,
        "showgrid": False,
    }


def ratio_axis(title: str, values: Iterable[float | None]) -> Part:
    """Describe a logarithmic axis, on which 2 and 1/2 are equally far from 1; it always shows 1."""
    logs = [0.0]
    for value in values:
        if value:
            logs.append(math.log10(value))
    low, high = min(logs), max(logs)
    margin = max(0.06 * (high - low), 0.01)
    low, high = low - margin, high + margin
    # Round numbers, with 1 among them and enough room between neighbours.
    gap = (high - low) / MAX_TICKS
    chosen = [0.0]
    for at in sorted(map(math.log10, _TICKS), key=abs):
        if low <= at <= high and all(abs(at - other) >= gap for other in chosen):
            chosen.append(at)
    ticks = [round(10**at, 4) for at in sorted(chosen)]
    return log_axis(title, ticks, range=[low, high])


def log_axis(title: str, ticks: Sequence[float], **more: Any) -> Part:
    """Describe a logarithmic axis with a text at each tick; `more` are settings of plotly.js."""
    return {
        "title": {"text": title},
        "type": "log",
        **more,
        "tickvals": ticks,
        "ticktext": list(map("{:g}".format, ticks)),
    }


def zero_axis(title: str) -> Part:
    """Describe an axis that shows 0."""
    return {"title": {"text": title}, "rangemode": "tozero"}


def lay_out(xaxis: Part, yaxis: Part, *lines: Part, **more: Any) -> Part:
    """Describe two axes and lines across the figure; `more` are settings of plotly.js."""
    layout = {"xaxis": xaxis, "yaxis": yaxis, **more}
    if lines:
        layout |= {"shapes": lines}
    return layout


def reference_line(axis: str, at: float = 1, **style: Any) -> Part:
    """Describe a line across the figure where `axis` has a value, by default 1, where compiling
    changes nothing.
    """
    other = "y" if axis == "x" else "x"
    return {
        "type": "line",
        "layer": "below",
        "line": {"color": "@muted", "width": 1.2, **style},
        f"{axis}0": at,
        f"{axis}1": at,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
    }
