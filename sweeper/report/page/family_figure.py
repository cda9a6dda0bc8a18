"""The figure of families: geometric means in AMP and fp32, beside what was published for PyTorch 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page import figure_base as base
from sweeper.report.page.published import Published
from sweeper.report.table import Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.summary import models

MAX_KEYS = 4  # groups of the summary that stand beside each other in one figure
PRECISIONS = {"AMP": ("geomean_amp", "models_amp"), "fp32": ("geomean_fp32", "models_fp32")}


def draw_families(rows: Sequence[Row], references: Mapping[str, Published]) -> base.Figure:
    """Draw geometric means in AMP and fp32 per family; `references` are published speedups by family."""
    keys = {key: list(group) for key, group in groupby(rows, formatting.key) if key}
    drawn = {key: rows for key, rows in keys.items() if any(row["geomean_amp"] or row["geomean_fp32"] for row in rows)}
    if not drawn:
        missing = "no geometric mean: no trial in a precision with a weight has a speedup"
        return base.Figure("families", "Families", missing=missing)
    caption = (
        "Geometric means of speedups over the models of a family, with 95 % intervals for these models where known."
    )
    if references:
        caption += " Dotted: what was published for PyTorch 2.0, on other hardware and other software."
    if len(drawn) <= MAX_KEYS:
        return base.Figure("families", "Families", caption, [_family_bars("all", drawn, references)])
    # The last row of a key is that of `all`.
    ordered = sorted(drawn.items(), key=lambda item: -(formatting.finite(item[1][-1], "geomean_amp") or 0.0))
    choices = [_family_bars(key, {key: group}, references) for key, group in ordered]
    return base.Figure("families", "Families", caption, choices)


def _family_bars(name: str, keys: Mapping[str, Sequence[Row]], references: Mapping[str, Published]) -> base.Choice:
    families = {text(row["family"]) for rows in keys.values() for row in rows}
    order = sorted(families, key=lambda family: (family == ALL, family))
    traces = []
    for index, (key, rows) in enumerate(keys.items()):
        for number, (precision, (geomean, count)) in enumerate(PRECISIONS.items()):
            if any(formatting.finite(row, geomean) is not None for row in rows):
                several = len(keys) > 1
                title = f"{precision}, {_shorten_key(key, keys)}" if several else precision
                shade = base.colour(index, pale=precision == "fp32") if several else base.colour(number)
                places = [order.index(text(row["family"])) for row in rows]
                traces.append(_geomeans(title, rows, places, geomean, count, shade))
    shown = {at: references[family] for at, family in enumerate(order) if family in references}
    traces += [_dotted_lines(shown)] if shown else []
    ticks = [base.label(family, 20) for family in order]
    for at, item in shown.items():  # in three lines, which fit under a group of bars
        value, _, source = item.label.partition(" (")
        ticks[at] = base.join_lines(ticks[at], base.label(value), base.label(f"({source}"))
    places, ends = list(range(len(order))), [-0.6, len(order) - 0.4]
    xaxis = {"tickvals": places, "ticktext": ticks, "range": ends, "tickangle": 0}
    layout = base.lay_out(400, xaxis, base.zero_axis("speedup"), line="y", barmode="group", bargap=0.25)
    return base.Choice(name, traces, layout)


def _shorten_key(key: str, keys: Mapping[str, object]) -> str:
    """Keep the parts of a key in which it differs from the other keys."""
    common = set.intersection(*(set(item.split(", ")) for item in keys))
    return ", ".join(part for part in key.split(", ") if part not in common) or key


def _geomeans(name: str, rows: Sequence[Row], at: Sequence[int], geomean: str, count: str, shade: str) -> base.Trace:
    heights = [formatting.finite(row, geomean) for row in rows]
    ends = [(formatting.finite(row, f"{geomean}_low"), formatting.finite(row, f"{geomean}_high")) for row in rows]
    known = [(low or height or 0.0, high or height or 0.0) for (low, high), height in zip(ends, heights, strict=True)]
    titles = [base.label(f"{text(row['family'])}, {name}") for row in rows]
    means = [base.label(f"{formatting.estimate(row, geomean)} over {models(row[count])}") for row in rows]
    hover = [base.join_lines(title, mean) for title, mean in zip(titles, means, strict=True)]
    style = {"textposition": "outside", "cliponaxis": False, "hovertext": hover}
    style["error_y"] = base.error_bars([height or 0.0 for height in heights], known)
    return base.bars(name, at, heights, shade, heights, **style)


def _dotted_lines(references: Mapping[int, Published]) -> base.Trace:
    """Describe a dotted line across the bars of each family, in the middle of the published range."""
    xs = [x for at in references for x in (at - 0.42, at + 0.42, None)]
    middles = [(item.low + item.high) / 2 for item in references.values()]
    ys = [y for middle in middles for y in (middle, middle, None)]
    texts = [base.label(f"published: {item.label}") for item in references.values() for _ in range(3)]
    devices = ", ".join(dict.fromkeys(f"{item.device} {item.year}" for item in references.values()))
    line = {"dash": "dot", "width": 2.2, "color": "@ink"}
    return base.points(f"published ({devices})", xs, ys, {}, mode="lines", line=line, text=texts)
