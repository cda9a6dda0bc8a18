"""Figures of what compiling costs and saves besides step time: compile time, total time, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.page import figure_base as base
from sweeper.report.page.speedup_figures import describe_trial, select_measured, speedup
from sweeper.report.table import Row
from sweeper.report.tables import speedups
from sweeper.report.tables.speedups import break_even, mark_upper_bound, memory_change, peak_ratio

MAX_POINTS = 3000  # of a scatter
MAX_TRIALS = 100  # to choose from in the figure of total time
STEPS_IF_NEVER = 10_000  # shown where compiling does not pay
BEYOND_BREAK_EVEN = 2.5  # how far the axis goes
NO_COMPILE_TIME = "no trial with a speedup has a compile time with an empty cache"
CACHES = (
    ("empty cache", "compile_cold_s", "break_even_steps", "solid"),
    ("filled cache", "compile_warm_s", "break_even_warm_steps", "dash"),
)


def draw_compile_time(rows: Sequence[Row]) -> base.Figure:
    """Draw cold compile time against speedup."""
    title = "Compile time against speedup"
    shown, thinned = _thin_out(
        [row for row in select_measured(rows) if base.positive(row, "compile_cold_s")]
    )
    if not shown:
        return base.Figure("compile-time", title, missing=NO_COMPILE_TIME)
    times_s = [base.positive(row, "compile_cold_s") or 1.0 for row in shown]
    xaxis = base.seconds_axis("compile time, empty cache", times_s)
    caption = "Extra wall seconds of the first compiled steps with an empty cache."
    if any("compile_contended" in formatting.flags(row) for row in shown):
        caption += " ≤: other work kept the processor busy, so the compile time alone is shorter."
    choice = _scatter(shown, times_s, xaxis, _describe_compile_time)
    return base.Figure("compile-time", title, caption + thinned, [choice])


def _describe_compile_time(row: Row) -> str:
    steps = break_even(row)
    return f"compile {speedups.compile_time(row)} s" + (
        f", break-even steps: {steps}" if steps else ""
    )


def draw_memory(rows: Sequence[Row]) -> base.Figure:
    """Draw the ratio of peak memory against speedup."""
    title = "Memory against speedup"
    shown, thinned = _thin_out(
        [row for row in select_measured(rows) if peak_ratio(row) is not None]
    )
    if not shown:
        return base.Figure(
            "memory", title, missing="no trial with a speedup has the peak memory of both arms"
        )
    ratios = [peak_ratio(row) or 1.0 for row in shown]
    xaxis = base.ratio_axis("eager / compiled peak memory", ratios)
    choice = _scatter(shown, ratios, xaxis, lambda row: f"memory {memory_change(row)}")
    choice.layout["shapes"].append(base.reference_line("x"))
    caption = "Right of 1 compiling saves device memory, above 1 it saves time."
    return base.Figure("memory", title, caption + thinned, [choice])


def _thin_out(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """Keep evenly spaced rows of many that are sorted by speedup; the text says how many rows were
    kept.
    """
    every = max(1, math.ceil(len(rows) / MAX_POINTS))
    kept = f" Shows one of every {every} of {len(rows)} trials, in the order of their speedups."
    return rows[::every], kept if every > 1 else ""


def _scatter(
    rows: Sequence[Row], xs: base.Numbers, xaxis: base.Layout, describe: Callable[[Row], str]
) -> base.Choice:
    """Draw speedups upwards, with a symbol per precision."""
    groups = base.group(
        range(len(rows)), lambda i: (text(rows[i]["precision"]), text(rows[i]["mode"]))
    )
    precisions, modes = (sorted({key[part] for key in groups}) for part in (0, 1))
    traces = []
    for (precision, mode), at in sorted(groups.items()):
        shade, symbol = (
            base.choose_colour(mode, precision),
            base.pick(base.SYMBOLS, precisions.index(precision)),
        )
        marker = {"color": shade, "symbol": symbol, "opacity": 0.8}
        name = f"{precision}, {mode}" if len(modes) > 1 else precision
        hover = [
            base.join_lines(describe_trial(rows[i]), base.label(describe(rows[i]))) for i in at
        ]
        traces.append(
            base.points(
                name, [xs[i] for i in at], [speedup(rows[i]) for i in at], marker, text=hover
            )
        )
    yaxis = base.ratio_axis("speedup", [speedup(row) for row in rows])
    return base.Choice("all", traces, base.lay_out(420, xaxis, yaxis, line="y"))


def draw_total_time(rows: Sequence[Row]) -> base.Figure:
    """Draw the seconds until a number of steps is done, in both arms; the lines cross at
    break-even.
    """
    title = "Total time against steps"
    needed = ("compile_cold_s", "eager_step_ms", "compiled_step_ms")
    measured = select_measured(rows)
    complete = [
        row for row in measured if all(formatting.finite(row, name) is not None for name in needed)
    ]
    if not complete:
        return base.Figure("total-time", title, missing=NO_COMPILE_TIME)
    axes = base.find_naming_axes(complete)
    caption = (
        "Compile time plus step times, the compiled arm with an empty and, where measured, a "
        "filled cache."
    )
    if len(complete) > MAX_TRIALS:
        caption += f" The {MAX_TRIALS} trials of {len(complete)} that pay back soonest."
    complete.sort(
        key=lambda row: (
            math.inf if (steps := formatting.finite(row, "break_even_steps")) is None else steps
        )
    )
    choices = [_total_time(base.name_row(row, axes), row) for row in complete[:MAX_TRIALS]]
    return base.Figure("total-time", title, caption, choices)


def _total_time(name: str, row: Row) -> base.Choice:
    eager_s, compiled_s = (
        (formatting.finite(row, f"{arm}_step_ms") or 0.0) / 1e3 for arm in ("eager", "compiled")
    )
    break_evens = [
        steps for _, _, column, _ in CACHES if (steps := formatting.finite(row, column)) is not None
    ]
    num_steps = math.ceil(BEYOND_BREAK_EVEN * max([0.0, *break_evens])) or STEPS_IF_NEVER
    traces = [_line("eager", num_steps, 0.0, eager_s, base.eager_colour(row), "solid")]
    for cache, time_column, steps_column, dash in CACHES:
        compile_s, steps = formatting.finite(row, time_column), formatting.finite(row, steps_column)
        if compile_s is None:
            continue
        traces.append(
            _line(
                f"compiled, {cache}", num_steps, compile_s, compiled_s, base.row_colour(row), dash
            )
        )
        if steps is not None:
            reached = f"break-even, {cache}: {mark_upper_bound(row)}{math.ceil(steps):,} steps"
            marker = {
                "color": "@ink",
                "size": 9,
                "symbol": "circle-open",
                "line": {"width": 2, "color": "@ink"},
            }
            traces.append(base.points(reached, [steps], [steps * eager_s], marker, hoverinfo="all"))
    xaxis = {"title": {"text": "steps"}, "range": [0, num_steps], "tickformat": ",d"}
    layout, pays_after = base.lay_out(420, xaxis, base.zero_axis("seconds")), break_even(row)
    return base.Choice(
        f"{name}: {pays_after}{' steps' if pays_after != 'never' else ''}", traces, layout
    )


def _line(
    name: str, num_steps: int, start_s: float, step_s: float, shade: str, dash: str
) -> base.Trace:
    xs, ys = [0, num_steps], [start_s, start_s + num_steps * step_s]
    line = {"color": shade, "dash": dash, "width": 2}
    return base.points(name, xs, ys, {}, mode="lines", line=line, hoverinfo="name+x+y")
