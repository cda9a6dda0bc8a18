"""What figures are made of: plain dictionaries in the form that plotly.js takes, and nothing of plotly itself.

Place in the flow: rows of tables `-> Figure -> page`. A colour is a name (`@0` to `@7`, `@ink`, `@muted`, `pale` ones
like `@0 pale`) that the page puts its own in for, light or dark. Every text goes through `label`, since plotly
takes HTML tags in texts for markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.core.text import printable
from sweeper.report import formatting
from sweeper.report.table import Row

Trace = dict[str, Any]
Layout = dict[str, Any]
COLOURS = 8
MAX_CHARACTERS = 34  # of a name beside an axis
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0,
    4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0,
)  # fmt: skip
MAX_TICKS = 9


@dataclass(frozen=True)
class Choice:
    """One way to draw a figure; `name` is plain text for a list to choose from."""

    name: str
    traces: Sequence[Trace]
    layout: Layout


@dataclass(frozen=True)
class Figure:
    """A figure, or why there is none: then it has no choices and `missing` is a sentence."""

    id: str
    title: str
    caption: str = ""
    choices: tuple[Choice, ...] = ()
    missing: str = ""


def label(text: str, most: int = 200) -> str:
    """A text that plotly shows as it is, on one line of `most` characters."""
    line = printable(text)
    return (line if len(line) <= most else f"{line[: most - 1]}…").translate(_ENTITIES)


def lines(*parts: str) -> str:
    """Texts that went through `label`, one below the other; empty ones are left out."""
    return "<br>".join(part for part in parts if part)


def colour(index: int, pale: bool = False) -> str:
    """A pale one lets half of the page through, and so does its square in a legend."""
    return f"@{index % COLOURS}{' pale' if pale else ''}"


def once_a_row(say: Callable[[Row], str]) -> Callable[[Row], str]:
    """The same text, put together once for each row. The rows must live as long as what is returned."""
    said: dict[int, str] = {}

    def of(row: Row) -> str:
        if id(row) not in said:
            said[id(row)] = say(row)
        return said[id(row)]

    return of


def finite(row: Row, name: str) -> float | None:
    """A number that can be drawn."""
    value = formatting.number(row, name)
    return value if value is not None and math.isfinite(value) else None


def positive(row: Row, name: str) -> float | None:
    """A number that a logarithmic axis takes."""
    value = finite(row, name)
    return value if value is not None and value > 0 else None


def names(rows: Sequence[Row], without: str = "") -> list[str]:
    """A name for each row: its model and the axes in which the rows differ, but for one that is named elsewhere."""
    axes = [name for name in axes_of_names(rows) if name != without]
    return [name_of(row, axes) for row in rows]


def axes_of_names(rows: Sequence[Row]) -> list[str]:
    """Those axes in which the rows differ; the batch size if a model has several."""
    axes = formatting.varying(rows, ("precision", "mode", *formatting.AXES, "sweep"))
    if len({(row["model"], row["batch_size"]) for row in rows}) == len({row["model"] for row in rows}):
        axes = [name for name in axes if name != "batch_size"]
    return axes


def name_of(row: Row, axes: Iterable[str]) -> str:
    """`resnet50 amp default b32`: the model, then the values of `axes`."""
    return " ".join(part for name in ("model", *axes) if (part := _part(row, name)))


def _part(row: Row, name: str) -> str:
    value = formatting.text(row[name])
    return f"b{value}" if value and name == "batch_size" else value


def ratio_axis(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis on which a speedup of 2 and a slowdown of 1/2 are equally far from 1; it always shows 1."""
    logs = [math.log10(value) for value in values if value is not None and value > 0]
    low, high = min([0.0, *logs]), max([0.0, *logs])
    margin = max(0.06 * (high - low), 0.01)
    low, high = low - margin, high + margin
    ticks = _ticks(low, high)
    return {
        "title": {"text": title},
        "type": "log",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two logarithms, 1 among them, none too near to another."""
    gap = (high - low) / MAX_TICKS
    chosen = [0.0]
    for tick in sorted(_TICKS, key=lambda tick: abs(math.log10(tick))):
        at = math.log10(tick)
        if low <= at <= high and all(abs(at - other) >= gap for other in chosen):
            chosen.append(at)
    return [round(10**at, 4) for at in sorted(chosen)]


def seconds_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5, in milliseconds below one second; `values` are positive seconds."""
    logs = [math.log10(value) for value in values]
    low, high = min(logs) - 0.08, max(logs) + 0.08
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    every = [factor * 10.0**power for power in range(-7, 6) for factor in factors]
    ticks = [tick for tick in every if low <= math.log10(tick) <= high]
    texts = [f"{tick:,g} s" if tick >= 1 else f"{1e3 * tick:g} ms" for tick in ticks]
    return {"title": {"text": title}, "type": "log", "range": [low, high], "tickvals": ticks, "ticktext": texts}


def line_at_one(across: str) -> dict[str, Any]:
    """Where compiling changes nothing: an upright line for `across="x"`, a level one for `y`."""
    other = "y" if across == "x" else "x"
    ends = {f"{across}0": 1, f"{across}1": 1, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", "layer": "below", "line": {"color": "@muted", "width": 1.2}, **ends}
