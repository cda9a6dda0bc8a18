"""The figure of families: geometric means in AMP and fp32, as in the figures of PyTorch 2.0, with those beside them.

Place in the flow: rows of summary.csv `-> Figure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page.figure_base import Choice, Figure, Trace, colour, finite, label, line_at_one, lines
from sweeper.report.page.published import Published
from sweeper.report.table import Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.summary import models

MAX_KEYS = 4  # groups of the summary that stand beside each other in one figure
AMP_AND_FP32 = (("geomean_amp", "models_amp", "AMP"), ("geomean_fp32", "models_fp32", "fp32"))


def families(rows: Sequence[Row], references: Mapping[str, Published]) -> Figure:
    """Geometric means in AMP and fp32 for each family; `references` are published figures by family."""
    title = "Families"
    keys = {key: list(group) for key, group in groupby(rows, formatting.key) if key}
    drawn = {
        key: group for key, group in keys.items() if any(row["geomean_amp"] or row["geomean_fp32"] for row in group)
    }
    if not drawn:
        return Figure(
            "families", title, missing="no geometric mean: no trial in a precision with a weight has a speedup"
        )
    caption = (
        "Geometric means of speedups over the models of a family, with 95 % intervals for these models where known."
    )
    if references:
        caption += " Dotted: what was published for PyTorch 2.0, on other hardware and other software."
    if len(drawn) <= MAX_KEYS:
        return Figure("families", title, caption, (_bars_of_families("all", drawn, references),))
    ordered = sorted(drawn.items(), key=lambda item: -(finite(item[1][-1], "geomean_amp") or 0.0))  # `all` is last
    choices = (_bars_of_families(key, {key: group}, references) for key, group in ordered)
    return Figure("families", title, caption, tuple(choices))


def _bars_of_families(name: str, keys: Mapping[str, Sequence[Row]], references: Mapping[str, Published]) -> Choice:
    found = {text(row["family"]) for rows in keys.values() for row in rows}
    order = [*sorted(found - {ALL}), *([ALL] if ALL in found else [])]
    traces = []
    for index, (key, rows) in enumerate(keys.items()):
        for number, (geomean, count, weight) in enumerate(AMP_AND_FP32):
            if any(finite(row, geomean) is not None for row in rows):
                several = len(keys) > 1
                shade = colour(index, pale=weight == "fp32") if several else colour(number)
                title = f"{weight}, {_short(key, list(keys))}" if several else weight
                at = [order.index(text(row["family"])) for row in rows]
                traces.append(_bars(title, rows, at, geomean, count, shade))
    shown = {family: references[family] for family in order if family in references}
    if shown:
        traces.append(_dotted([(order.index(family), item) for family, item in shown.items()]))
    ticks = [lines(label(family, 20), *_in_two_lines(shown.get(family))) for family in order]
    layout = {
        "height": 400,
        "barmode": "group",
        "bargap": 0.25,
        "xaxis": {
            "tickvals": list(range(len(order))),
            "ticktext": ticks,
            "range": [-0.6, len(order) - 0.4],
            "tickangle": 0,
        },
        "yaxis": {"title": {"text": "speedup"}, "rangemode": "tozero"},
        "shapes": [line_at_one("y")],
    }
    return Choice(name, traces, layout)


def _in_two_lines(item: Published | None) -> tuple[str, ...]:
    """`1.38` over `(A100, 2022)`, which fits under a group of bars."""
    value, _, where = item.label.partition(" (") if item else ("", "", "")
    return (label(value), label(f"({where}")) if item else ()


def _short(key: str, keys: Sequence[str]) -> str:
    """The parts of a key in which it differs from others."""
    parts = [set(item.split(", ")) for item in keys]
    common = set.intersection(*parts)
    return ", ".join(part for part in key.split(", ") if part not in common) or key


def _bars(name: str, rows: Sequence[Row], at: Sequence[int], geomean: str, count: str, shade: str) -> Trace:
    heights = [finite(row, geomean) for row in rows]
    return {
        "type": "bar",
        "name": label(name, 60),
        "x": list(at),
        "y": heights,
        "error_y": _error(rows, geomean, heights),
        "marker": {"color": shade},
        "text": [formatting.ratio(height) for height in heights],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [
            lines(
                label(f"{text(row['family'])}, {name}"),
                label(f"{formatting.estimate(row, geomean)} over {models(row[count])}"),
            )
            for row in rows
        ],
        "hoverinfo": "text",
    }


def _error(rows: Sequence[Row], name: str, middles: Sequence[float | None]) -> dict[str, Any]:
    def distance(row: Row, end: str, middle: float | None) -> float:
        bound = finite(row, f"{name}_{end}")
        return 0.0 if bound is None or middle is None else abs(bound - middle)

    pairs = list(zip(rows, middles, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [distance(row, "high", middle) for row, middle in pairs],
        "arrayminus": [distance(row, "low", middle) for row, middle in pairs],
        "color": "@ink",
        "thickness": 1,
        "width": 3,
        "visible": any(finite(row, f"{name}_low") is not None for row in rows),
    }


def _dotted(references: Sequence[tuple[int, Published]]) -> Trace:
    """A dotted line over the bars of a family, in the middle of what was published."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    for at, item in references:
        middle = (item.low + item.high) / 2
        xs += [at - 0.42, at + 0.42, None]
        ys += [middle, middle, None]
        texts += [label(f"published: {item.label}")] * 3
    devices = ", ".join(dict.fromkeys(f"{item.device} {item.year}" for _, item in references))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(f"published ({devices})"),
        "x": xs,
        "y": ys,
        "line": {"dash": "dot", "width": 2.2, "color": "@ink"},
        "text": texts,
        "hoverinfo": "text",
    }
