"""The figure of a script's shapes: how often its compiled loop saw each size of the dimension that
varies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from sweeper.core.record import ScriptRun
from sweeper.loading.entries import Entry
from sweeper.report.page import figure_base as base
from sweeper.report.table import Row
from sweeper.report.tables.scripts import advises_to_pad

MAX_TRIALS = 100
MAX_BARS = 100
TITLE = "Sizes in a script's loop"
CAPTION = (
    "How often the compiled loop called its model with each size of the dimension that varies. "
    "Lines: the sizes to pad "
    "to, which are the quartiles and the largest."
)


def draw_sizes(entries: Sequence[Entry], rows: Sequence[Row]) -> base.Figure:
    """Draw a histogram per script with sizes; `rows` are the rows of speedups.csv for `entries`, in
    the same order.
    """
    pairs = [(entry.result.seen_of_script, row) for entry, row in zip(entries, rows, strict=True)]
    seen = [(script, row) for script, row in pairs if script and len(script.sizes) > 1]
    if not seen:
        return base.Figure(
            "script-sizes", TITLE, missing="no script has shapes that differ in one dimension"
        )
    axes = base.find_naming_axes([row for _, row in seen])
    more = f" The first {MAX_TRIALS} of {len(seen)} trials." if len(seen) > MAX_TRIALS else ""
    choices = [_draw(script, row, base.name_row(row, axes)) for script, row in seen[:MAX_TRIALS]]
    return base.Figure("script-sizes", TITLE, CAPTION + more, choices)


def _draw(script: ScriptRun, row: Row, name: str) -> base.Choice:
    least, largest = (
        min(item.size for item in script.sizes),
        max(item.size for item in script.sizes),
    )
    width = math.ceil((largest - least + 1) / MAX_BARS)
    counts: Counter[int] = Counter()
    for item in script.sizes:
        counts[least + (item.size - least) // width * width] += item.count
    firsts = sorted(counts)  # the least size of each bar
    heights = [counts[first] for first in firsts]
    bars = {
        "type": "bar",
        "name": base.label(name, 60),
        "x": [first + (width - 1) / 2 for first in firsts],
        "y": heights,
        "width": 0.9 * width,
        "marker": base.fill(base.row_colour(row)),
        "hoverinfo": "text+y",
        "hovertext": [_describe(first, width) for first in firsts],
    }
    traces: list[base.Trace] = [
        bars,
        *([_mark(script.pad_to, max(heights))] if advises_to_pad(script) else []),
    ]
    margin = max(0.04 * (largest - least), width)
    xaxis = {
        "title": {"text": "size of the dimension that varies"},
        "range": [least - margin, largest + margin],
    }
    layout = base.lay_out(360, xaxis, base.zero_axis("calls"))
    return base.Choice(f"{name}: {script.num_shapes:,} shapes", traces, layout)


def _describe(first: int, width: int) -> str:
    return base.label(
        f"size {first:,}" if width == 1 else f"sizes {first:,} to {first + width - 1:,}"
    )


def _mark(sizes: Sequence[int], height: int) -> base.Trace:
    """Draw a line behind each size to pad to, with the size on top; None ends a line."""
    xs = [x for size in sizes for x in (size + 0.5, size + 0.5, None)]
    ys = [y for _ in sizes for y in (0, 1.1 * height, None)]
    texts = [text for size in sizes for text in ("", f"{size:,}", "")]
    style = {"mode": "lines+text", "text": texts, "textposition": "top center", "hoverinfo": "skip"}
    return base.points(
        "pad to", xs, ys, {}, line={"color": "@ink", "dash": "dash", "width": 1.4}, **style
    )
