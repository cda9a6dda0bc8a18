"""Figures of what compiling costs and saves besides step time: compile time, total time, memory."""

import math
from collections.abc import Callable, Sequence

from sweeper.core.grouping import group_by
from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import find_candidate
from sweeper.report.answers.speedups import (
    mark_upper_bound,
    peak_ratio,
    show_break_even,
    show_compile_time,
    show_memory_change,
)
from sweeper.report.answers.trials import show_axis
from sweeper.report.columns.formats import prefix

from .plotly_parts import (
    SYMBOLS,
    Drawing,
    Figure,
    Part,
    Trace,
    choose_colour,
    compiled_colour,
    lay_out,
    list_kinds,
    name_entries,
    pick,
    points,
    ratio_axis,
    reference_line,
    zero_axis,
)
from .speedup_figures import describe_trial, select_measured, speedup

MAX_POINTS = 3000  # of a scatter
MAX_TRIALS = 100  # to choose from in the figure of total time
STEPS_IF_NEVER = 10_000  # shown where compiling does not pay
BEYOND_BREAK_EVEN = 2.5  # how far the axis goes
NO_COMPILE_TIME = "no trial with a speedup has a compile time with an empty cache"


def draw_compile_time(entries: Sequence[Entry]) -> Figure:
    """Draw cold compile time against speedup."""
    shown, thinned = _select_known(entries, _read_compile_cold_s)
    xaxis = {"title": {"text": "compile time, empty cache"}, "type": "log", "ticksuffix": " s"}
    drawings = _scatter(shown, _read_compile_cold_s, xaxis, _describe_compile_time)
    caption = "Extra wall seconds of the first compiled steps with an empty cache."
    if any("compile_contended" in entry.flags for entry in shown):
        caption += " ≤: other work kept the processor busy, so the compile time alone is shorter."
    title = "Compile time against speedup"
    return Figure("compile-time", title, caption + thinned, drawings, NO_COMPILE_TIME)


def _read_compile_cold_s(entry: Entry) -> float | None:
    return entry.result.compile_cold_s


def _describe_compile_time(entry: Entry) -> str:
    break_even = prefix(", break-even steps: ", show_break_even(entry))
    return f"compile {show_compile_time(entry)} s{break_even}"


def draw_memory(entries: Sequence[Entry]) -> Figure:
    """Draw the ratio of peak memory against speedup."""
    shown, thinned = _select_known(entries, peak_ratio)
    drawings = _scatter(
        shown,
        peak_ratio,
        ratio_axis("eager / compiled peak memory", map(peak_ratio, shown)),
        lambda entry: f"memory {show_memory_change(entry)}",
        reference_line("x"),
    )
    caption = "Right of 1 compiling saves device memory, above 1 it saves time."
    missing = "no trial with a speedup has the peak memory of both arms"
    return Figure("memory", "Memory against speedup", caption + thinned, drawings, missing)


def _select_known(
    entries: Sequence[Entry], read: Callable[[Entry], float | None]
) -> tuple[Sequence[Entry], str]:
    """Select the trials with a speedup of which a positive number is read, evenly spaced ones of
    many; the text says how many were kept.
    """
    known = [entry for entry in select_measured(entries) if (read(entry) or 0.0) > 0]
    every = math.ceil(len(known) / MAX_POINTS)
    if every <= 1:
        return known, ""
    kept = f" Shows one of every {every} of {len(known)} trials, in the order of their speedups."
    return known[::every], kept


def _scatter(
    entries: Sequence[Entry],
    read: Callable[[Entry], float | None],
    xaxis: Part,
    describe: Callable[[Entry], str],
    *lines: Part,
) -> list[Drawing]:
    """Draw speedups upwards over what is read, with a symbol per precision; no trials give no
    drawing.
    """
    if not entries:
        return []
    groups = group_by(list_kinds(entries), entries)
    precisions = sorted({kind[0] for kind in groups})
    traces = []
    for kind, found in sorted(groups.items()):
        marker = {
            "color": compiled_colour(found[0]),
            "symbol": pick(SYMBOLS, precisions.index(kind[0])),
            "opacity": 0.8,
        }
        hover = [describe_trial(entry, describe(entry)) for entry in found]
        xs, ys = list(map(read, found)), list(map(speedup, found))
        traces.append(points(", ".join(kind), xs, ys, marker, text=hover))
    yaxis = ratio_axis("speedup", map(speedup, entries))
    return [Drawing("all", traces, 420, lay_out(xaxis, yaxis, reference_line("y"), *lines))]


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
            reached = f"break-even, {cache}: {bound}{math.ceil(steps):,} steps"
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
