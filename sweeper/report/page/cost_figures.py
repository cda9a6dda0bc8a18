"""The figure of total time: what compiling costs before it saves."""

import math
from collections.abc import Sequence

from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import find_candidate
from sweeper.report.answers.speedups import (
    mark_upper_bound,
    show_break_even,
)
from sweeper.report.answers.trials import show_axis
from sweeper.report.columns.formats import show_steps

from .plotly_parts import (
    Drawing,
    Figure,
    Trace,
    choose_colour,
    compiled_colour,
    lay_out,
    name_entries,
    points,
    zero_axis,
)
from .speedup_figures import select_measured

MAX_TRIALS = 100  # to choose from in the figure of total time
STEPS_IF_NEVER = 10_000  # shown where compiling does not pay
BEYOND_BREAK_EVEN = 2.5  # how far the axis goes
NO_COMPILE_TIME = "no trial with a speedup has a compile time with an empty cache"


def draw_total_time(entries: Sequence[Entry]) -> Figure:
    """Draw the seconds until a number of steps is done, in both arms; the lines cross at
    break-even.
    """
    measured = select_measured(entries)
    complete = [entry for entry in measured if entry.result.compile_cold_s is not None]
    complete.sort(key=lambda entry: entry.result.break_even_steps.value or math.inf)
    caption = (
        "Compile time plus step times, the compiled arm with an empty and, where measured, a "
        "filled cache."
    )
    if len(complete) > MAX_TRIALS:
        caption += f" The {MAX_TRIALS} trials of {len(complete)} that pay back soonest."
    names, shown = name_entries(complete)[:MAX_TRIALS], complete[:MAX_TRIALS]
    drawings = list(map(_draw_total_time, names, shown))
    return Figure("total-time", "Total time against steps", caption, drawings, NO_COMPILE_TIME)


def _draw_total_time(name: str, entry: Entry) -> Drawing:
    result, one = entry.result, find_candidate(entry)
    assert one is not None
    eager_s, compiled_s = one.eager_s, one.eager_s / one.gain.value
    cold, warm = result.break_even_steps.value, result.break_even_warm_steps.value
    caches = (
        ("empty cache", result.compile_cold_s, cold, "solid"),
        ("filled cache", result.compile_warm_s, warm, "dash"),
    )
    break_even = max(cold or 0.0, warm or 0.0)
    num_steps = math.ceil(BEYOND_BREAK_EVEN * break_even) or STEPS_IF_NEVER
    shade = choose_colour("eager", show_axis(entry, "precision"))
    traces = [_line("eager", num_steps, 0.0, eager_s, shade, "solid")]
    shade, bound = compiled_colour(entry), mark_upper_bound(entry)
    for cache, compile_s, steps, dash in caches:
        if compile_s is None:
            continue
        traces.append(_line(f"compiled, {cache}", num_steps, compile_s, compiled_s, shade, dash))
        if steps is not None:
            reached = f"break-even, {cache}: {bound}{show_steps(steps)} steps"
            ring = {"width": 2, "color": "@ink"}
            marker = {"color": "@ink", "size": 9, "symbol": "circle-open", "line": ring}
            traces.append(points(reached, [steps], [steps * eager_s], marker, hoverinfo="all"))
    xaxis = {"title": {"text": "steps"}, "range": [0, num_steps], "tickformat": ",d"}
    unit = "" if cold is None else " steps"
    layout = lay_out(xaxis, zero_axis("seconds"))
    return Drawing(f"{name}: {one.clock}{show_break_even(entry)}{unit}", traces, 420, layout)


def _line(name: str, num_steps: int, start_s: float, step_s: float, shade: str, dash: str) -> Trace:
    xs, ys = [0, num_steps], [start_s, start_s + num_steps * step_s]
    line = {"color": shade, "dash": dash, "width": 2}
    return points(name, xs, ys, {}, mode="lines", line=line, hoverinfo="name+x+y")
