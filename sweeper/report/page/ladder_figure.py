"""The figure of ladders: per model a bar for each rung, from eager as built to torch.compile."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.core.ladder import RUNGS, TITLES
from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page import figure_base as base
from sweeper.report.table import Row
from sweeper.report.tables.ladder import find_axes, group_by_ladder, name_ladder

MAX_LADDERS = 6  # beside each other
COMPILE = "compile "  # begins the titles of compiled rungs
ORDER = tuple(TITLES[rung] for rung in RUNGS)


def draw_ladders(rows: Sequence[Row]) -> base.Figure:
    """Draw the speedups over eager as built of the rungs of each ladder."""
    title = "How much of the speedup is torch.compile's"
    ladders = [
        found
        for found in group_by_ladder(rows)
        if any(base.positive(row, "speedup") for row in found)
    ]
    if not ladders:
        return base.Figure(
            "ladder", title, missing="no model has a ladder: experiment=ladder runs one"
        )
    caption = (
        "Speedup over eager as built, with 95 % intervals where known. Each rung adds to those "
        "before it; the compiled "
        "ones have every one-liner and do without the graph by hand."
    )
    axes = find_axes(rows)
    parts = [ladders[start : start + MAX_LADDERS] for start in range(0, len(ladders), MAX_LADDERS)]
    return base.Figure("ladder", title, caption, [_draw(part, axes) for part in parts])


def _draw(ladders: Sequence[Sequence[Row]], axes: Sequence[str]) -> base.Choice:
    names = [name_ladder(found[0], axes) for found in ladders]
    at = {id(row): index for index, found in enumerate(ladders) for row in found}
    rungs = base.group((row for found in ladders for row in found), lambda row: text(row["rung"]))
    traces = []
    for rung in sorted(rungs, key=_rank):
        shown = [row for row in rungs[rung] if base.positive(row, "speedup")]
        heights = [base.positive(row, "speedup") or 1.0 for row in shown]
        ends = [_ends(row, height) for row, height in zip(shown, heights, strict=True)]
        style = {
            "textposition": "outside",
            "cliponaxis": False,
            "error_y": base.error_bars(heights, ends),
        }
        style["hovertext"] = [_describe(row, names[at[id(row)]]) for row in shown]
        places = [at[id(row)] for row in shown]
        shades = [_colour(rung, row) for row in shown]
        marker = base.fill(shades[0] if len(set(shades)) == 1 else shades, _pattern(rung))
        traces.append(base.bars(rung, places, heights, marker, heights, **style))
    yaxis = base.zero_axis("speedup over eager as built")
    xaxis = {**base.names_axis(names), "range": [-0.6, len(names) - 0.4]}
    layout = base.lay_out(420, xaxis, yaxis, line="y", barmode="group", bargap=0.2)
    return base.Choice(", ".join(names[:2]) + (", …" if len(names) > 2 else ""), traces, layout)


def _rank(rung: str) -> int:
    """The place of a rung; one with compile settings of its own stands with that of its mode."""
    return next(
        (index for index, title in enumerate(ORDER) if rung.partition(" (")[0] == title), len(ORDER)
    )


def _colour(rung: str, row: Row) -> str:
    """The colour of a compiled rung is its mode's; rungs without torch.compile have that of
    eager.
    """
    mode = rung.partition(" (")[0].removeprefix(COMPILE) if rung.startswith(COMPILE) else "eager"
    return base.choose_colour(mode, text(row["precision"]))


def _pattern(rung: str) -> str:
    return "" if rung.startswith(COMPILE) else base.pick(base.PATTERNS, _rank(rung))


def _ends(row: Row, height: float) -> tuple[float, float]:
    return base.positive(row, "speedup_low") or height, base.positive(row, "speedup_high") or height


def _describe(row: Row, name: str) -> str:
    before = formatting.estimate(row, "speedup_over_before")
    over_strongest = formatting.estimate(row, "speedup_over_strongest_eager")
    return base.join_lines(
        base.label(f"{name}, {text(row['rung'])}"),
        base.label(f"over eager as built {formatting.estimate(row, 'speedup')}"),
        base.label(f"over {text(row['before'])} {before}") if before else "",
        base.label(f"over strongest eager {over_strongest}") if over_strongest else "",
    )
