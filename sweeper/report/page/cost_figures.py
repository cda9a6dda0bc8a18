"""Figures of what compiling costs and saves besides step time: compile time, total time, memory."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.loading.entries import Entry
from sweeper.report.answers.speedups import (
    mark_upper_bound,
    peak_ratio,
    show_break_even,
    show_compile_time,
    show_memory_change,
)
from sweeper.report.answers.trials import show_axis

from .figure_base import (
    SYMBOLS,
    Axis,
    Drawing,
    Figure,
    Layout,
    Trace,
    choose_colour,
    compiled_colour,
    find_naming_axes,
    list_kinds,
    name_entry,
    pick,
    points,
    ratio_axis,
    reference_line,
    seconds_axis,
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
    title = "Compile time against speedup"
    measured = select_measured(entries)
    timed = [entry for entry in measured if (entry.result.compile_cold_s or 0.0) > 0]
    if not timed:
        return Figure("compile-time", title, missing=NO_COMPILE_TIME)
    shown, thinned = _thin_out(timed)
    times_s = [entry.result.compile_cold_s or 1.0 for entry in shown]
    xaxis = seconds_axis("compile time, empty cache", times_s)
    caption = "Extra wall seconds of the first compiled steps with an empty cache."
    if any("compile_contended" in entry.flags for entry in shown):
        caption += " ≤: other work kept the processor busy, so the compile time alone is shorter."
    texts = []
    for entry in shown:
        steps = show_break_even(entry)
        break_even = f", break-even steps: {steps}" if steps else ""
        texts.append(f"compile {show_compile_time(entry)} s{break_even}")
    drawing = _scatter(shown, times_s, xaxis, texts)
    return Figure("compile-time", title, caption + thinned, [drawing])


def draw_memory(entries: Sequence[Entry]) -> Figure:
    """Draw the ratio of peak memory against speedup."""
    title = "Memory against speedup"
    known = [entry for entry in select_measured(entries) if peak_ratio(entry) is not None]
    if not known:
        missing = "no trial with a speedup has the peak memory of both arms"
        return Figure("memory", title, missing=missing)
    shown, thinned = _thin_out(known)
    ratios = [peak_ratio(entry) or 1.0 for entry in shown]
    xaxis = ratio_axis("eager / compiled peak memory", ratios)
    caption = "Right of 1 compiling saves device memory, above 1 it saves time."
    texts = [f"memory {show_memory_change(entry)}" for entry in shown]
    drawing = _scatter(shown, ratios, xaxis, texts, reference_line("x"))
    return Figure("memory", title, caption + thinned, [drawing])


def _thin_out(entries: Sequence[Entry]) -> tuple[Sequence[Entry], str]:
    """Keep evenly spaced trials of many that are sorted by speedup; the text says how many were
    kept.
    """
    every = math.ceil(len(entries) / MAX_POINTS)
    if every <= 1:
        return entries, ""
    kept = f" Shows one of every {every} of {len(entries)} trials, in the order of their speedups."
    return entries[::every], kept


def _scatter(
    entries: Sequence[Entry],
    xs: Sequence[float],
    xaxis: Axis,
    texts: Sequence[str],
    *lines: Mapping[str, Any],
) -> Drawing:
    """Draw speedups upwards, with a symbol per precision."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, kind in enumerate(list_kinds(entries)):
        groups[kind].append(place)
    precisions = sorted({kind[0] for kind in groups})
    traces = []
    for kind, places in sorted(groups.items()):
        found = [entries[place] for place in places]
        marker = {
            "color": compiled_colour(found[0]),
            "symbol": pick(SYMBOLS, precisions.index(kind[0])),
            "opacity": 0.8,
        }
        hover = [describe_trial(entries[place], texts[place]) for place in places]
        across, up = [xs[place] for place in places], list(map(speedup, found))
        traces.append(points(", ".join(kind), across, up, marker, text=hover))
    yaxis = ratio_axis("speedup", map(speedup, entries))
    return Drawing("all", traces, Layout(420, xaxis, yaxis, (reference_line("y"), *lines)))


def draw_total_time(entries: Sequence[Entry]) -> Figure:
    """Draw the seconds until a number of steps is done, in both arms; the lines cross at
    break-even.
    """
    title = "Total time against steps"
    complete = []
    for entry in select_measured(entries):
        result = entry.result
        times_s = (result.compile_cold_s, result.eager_step_s, result.compiled_step_s)
        if None not in times_s:
            complete.append(entry)
    if not complete:
        return Figure("total-time", title, missing=NO_COMPILE_TIME)
    axes = find_naming_axes(complete)
    caption = (
        "Compile time plus step times, the compiled arm with an empty and, where measured, a "
        "filled cache."
    )
    if len(complete) > MAX_TRIALS:
        caption += f" The {MAX_TRIALS} trials of {len(complete)} that pay back soonest."
    complete.sort(key=_rank_break_even)
    shown = complete[:MAX_TRIALS]
    drawings = [_draw_total_time(name_entry(entry, axes), entry) for entry in shown]
    return Figure("total-time", title, caption, drawings)


def _rank_break_even(entry: Entry) -> float:
    steps = entry.result.break_even_steps
    return math.inf if steps is None else steps


def _draw_total_time(name: str, entry: Entry) -> Drawing:
    result = entry.result
    eager_s, compiled_s = result.eager_step_s or 0.0, result.compiled_step_s or 0.0
    caches = (
        ("empty cache", result.compile_cold_s, result.break_even_steps, "solid"),
        ("filled cache", result.compile_warm_s, result.break_even_warm_steps, "dash"),
    )
    break_even = max(result.break_even_steps or 0.0, result.break_even_warm_steps or 0.0)
    num_steps = math.ceil(BEYOND_BREAK_EVEN * break_even) or STEPS_IF_NEVER
    shade = choose_colour("eager", show_axis(entry, "precision"))
    traces = [_line("eager", num_steps, 0.0, eager_s, shade, "solid")]
    for cache, compile_s, steps, dash in caches:
        if compile_s is None:
            continue
        shade, title = compiled_colour(entry), f"compiled, {cache}"
        traces.append(_line(title, num_steps, compile_s, compiled_s, shade, dash))
        if steps is not None:
            many = f"{mark_upper_bound(entry)}{math.ceil(steps):,} steps"
            ring = {"width": 2, "color": "@ink"}
            marker = {"color": "@ink", "size": 9, "symbol": "circle-open", "line": ring}
            reached = f"break-even, {cache}: {many}"
            traces.append(points(reached, [steps], [steps * eager_s], marker, hoverinfo="all"))
    xaxis = {"title": {"text": "steps"}, "range": [0, num_steps], "tickformat": ",d"}
    pays_after = show_break_even(entry)
    unit = "" if pays_after == "never" else " steps"
    layout = Layout(420, xaxis, zero_axis("seconds"))
    return Drawing(f"{name}: {pays_after}{unit}", traces, layout)


def _line(name: str, num_steps: int, start_s: float, step_s: float, shade: str, dash: str) -> Trace:
    xs, ys = [0, num_steps], [start_s, start_s + num_steps * step_s]
    line = {"color": shade, "dash": dash, "width": 2}
    return points(name, xs, ys, {}, mode="lines", line=line, hoverinfo="name+x+y")
