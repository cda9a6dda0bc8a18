"""Figures of what compiling costs and saves beside time a step: compile time, total time, memory.

Place in the flow: rows of speedups.csv `-> Figure`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page.figure_base import (
    Choice,
    Figure,
    Trace,
    axes_of_names,
    colour,
    finite,
    label,
    line_at_one,
    lines,
    name_of,
    positive,
    ratio_axis,
    seconds_axis,
)
from sweeper.report.page.speedup_figures import Hover, measured, trial_hover
from sweeper.report.table import Row
from sweeper.report.tables import speedups
from sweeper.report.tables.speedups import at_most, break_even, memory_ratio, peak_ratio

MAX_POINTS = 3000  # of a scatter
MAX_TRIALS = 100  # to choose from in the figure of total time
STEPS_IF_NEVER = 10_000  # shown where compiling does not pay
BEYOND_BREAK_EVEN = 2.5  # how far the axis goes
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "cross")


def compile_time(rows: Sequence[Row], hover: Hover = trial_hover) -> Figure:
    """Cold compile time against speedup."""
    title = "Compile time against speedup"
    found, left_out = _thinned([row for row in measured(rows) if positive(row, "compile_cold_s") is not None])
    if not found:
        return Figure("compile-time", title, missing="no trial with a speedup has a compile time with an empty cache")
    times = [positive(row, "compile_cold_s") or 1.0 for row in found]
    choice = _scatter(found, times, lambda row: lines(hover(row), label(_costs_of(row))))
    choice.layout["xaxis"] = seconds_axis("compile time, empty cache", times)
    caption = "Extra wall seconds of the first compiled steps with an empty cache."
    if any("compile_contended" in formatting.flags(row) for row in found):
        caption += " ≤: others kept the processor busy meanwhile, so alone it is shorter."
    return Figure("compile-time", title, caption + left_out, (choice,))


def memory(rows: Sequence[Row], hover: Hover = trial_hover) -> Figure:
    """Ratio of peak memory against speedup."""
    title = "Memory against speedup"
    found, left_out = _thinned([row for row in measured(rows) if peak_ratio(row) is not None])
    if not found:
        return Figure("memory", title, missing="no trial with a speedup has the peak memory of both arms")
    ratios = [peak_ratio(row) or 1.0 for row in found]
    choice = _scatter(found, ratios, lambda row: lines(hover(row), label(f"memory ratio {memory_ratio(row)}")))
    choice.layout["xaxis"] = ratio_axis("eager / compiled peak memory", ratios)
    choice.layout["shapes"].append(line_at_one("x"))
    caption = "Right of 1 compiling saves device memory, above 1 it saves time."
    return Figure("memory", title, caption + left_out, (choice,))


def _thinned(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """Evenly spaced rows of many that are sorted by speedup, and a sentence that says so."""
    every = math.ceil(len(rows) / MAX_POINTS)
    if every < 2:
        return rows, ""
    return rows[::every], f" One trial of every {every}, of {len(rows)} in the order of their speedups."


def _costs_of(row: Row) -> str:
    steps = break_even(row)
    return f"compile {speedups.compile_time(row)} s" + (f", break-even steps: {steps}" if steps else "")


def _scatter(rows: Sequence[Row], xs: Sequence[float], hover: Hover) -> Choice:
    """Speedups upwards; a colour for each precision, a symbol for each mode."""
    groups = sorted({(text(row["precision"]), text(row["mode"])) for row in rows})
    precisions, modes = (sorted({group[part] for group in groups}) for part in (0, 1))
    traces: list[Trace] = []
    for precision, mode in groups:
        at = [i for i, row in enumerate(rows) if (text(row["precision"]), text(row["mode"])) == (precision, mode)]
        shade, symbol = colour(precisions.index(precision)), SYMBOLS[modes.index(mode) % len(SYMBOLS)]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(f"{precision}, {mode}" if len(modes) > 1 else precision, 60),
                "x": [xs[i] for i in at],
                "y": [positive(rows[i], "speedup") for i in at],
                "marker": {"color": shade, "symbol": symbol, "size": 8, "opacity": 0.8},
                "text": [hover(rows[i]) for i in at],
                "hoverinfo": "text",
            }
        )
    yaxis = ratio_axis("speedup", [positive(row, "speedup") for row in rows])
    return Choice("all", traces, {"height": 420, "yaxis": yaxis, "shapes": [line_at_one("y")]})


def total_time(rows: Sequence[Row]) -> Figure:
    """Seconds until a number of steps is done, in both arms; they cross at break-even."""
    title = "Total time against steps"
    needed = ("compile_cold_s", "eager_step_ms", "compiled_step_ms")
    found = [row for row in measured(rows) if all(finite(row, name) is not None for name in needed)]
    if not found:
        return Figure("total-time", title, missing="no trial with a speedup has a compile time with an empty cache")
    soonest = sorted(found, key=lambda row: _or_never(finite(row, "break_even_steps")))
    axes = axes_of_names(soonest)
    choices = [_total_of(name_of(row, axes), row) for row in soonest[:MAX_TRIALS]]
    caption = "Compile time plus step times, the compiled arm with an empty and, where measured, a filled cache."
    if len(found) > MAX_TRIALS:
        caption += f" The {MAX_TRIALS} trials of {len(found)} that pay back soonest."
    return Figure("total-time", title, caption, tuple(choices))


def _or_never(steps: float | None) -> float:
    return math.inf if steps is None else steps


def _total_of(name: str, row: Row) -> Choice:
    eager_s, compiled_s = (finite(row, f"{arm}_step_ms") or 0.0 for arm in ("eager", "compiled"))
    eager_s, compiled_s = eager_s / 1e3, compiled_s / 1e3
    caches = {
        "empty cache": ("compile_cold_s", "break_even_steps"),
        "filled cache": ("compile_warm_s", "break_even_warm_steps"),
    }
    pays = [steps for _, column in caches.values() if (steps := finite(row, column)) is not None]
    most = math.ceil(BEYOND_BREAK_EVEN * max(pays)) if pays and max(pays) > 0 else STEPS_IF_NEVER
    traces = [_line("eager", most, 0.0, eager_s, colour(1))]
    for index, (cache, (cost, column)) in enumerate(caches.items()):
        compile_s, steps = finite(row, cost), finite(row, column)
        if compile_s is None:
            continue
        traces.append(_line(f"compiled, {cache}", most, compile_s, compiled_s, colour(0), ("solid", "dash")[index]))
        if steps is not None:
            reached = f"break-even, {cache}: {at_most(row)}{math.ceil(steps):,} steps"
            traces.append(_crossing(reached, steps, steps * eager_s))
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "steps"}, "range": [0, most], "tickformat": ",d"},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
    }
    pays_after = break_even(row)
    return Choice(f"{name}: {pays_after}{' steps' if pays_after != 'never' else ''}", traces, layout)


def _line(name: str, most: int, start_s: float, step_s: float, shade: str, dash: str = "solid") -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(name),
        "x": [0, most],
        "y": [start_s, start_s + most * step_s],
        "line": {"color": shade, "dash": dash, "width": 2},
        "hoverinfo": "name+x+y",
    }


def _crossing(name: str, steps: float, seconds: float) -> Trace:
    marker = {"color": "@ink", "size": 9, "symbol": "circle-open", "line": {"width": 2, "color": "@ink"}}
    x, y = [steps], [seconds]
    return {"type": "scatter", "mode": "markers", "name": label(name), "x": x, "y": y, "marker": marker}
