"""Figures of speedups: every trial, backends, batch sizes; geometric means of families.

Families have AMP and fp32 beside each other, and what was published for PyTorch 2.0.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from sweeper.analysis.flags import UNVERIFIED, leave_out_housekeeping
from sweeper.analysis.gains import Gain
from sweeper.analysis.stats import ratio_of
from sweeper.core.grouping import group_by
from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import find_candidate
from sweeper.report.answers.groups import ALL, AMP, FP32, Group
from sweeper.report.answers.model_points import GroupKey
from sweeper.report.answers.speedups import (
    show_device_speedup,
    show_speedup,
)
from sweeper.report.answers.trials import find_varying, name_trial, show_axes, show_axis
from sweeper.report.columns.formats import estimated, join, prefix, shorten
from sweeper.report.published import References, find_published

from .plotly_parts import (
    DASHES,
    PATTERNS,
    SYMBOLS,
    Drawing,
    Figure,
    Part,
    Trace,
    bars,
    choose_colour,
    compiled_colour,
    error_bars,
    estimate_bars,
    lay_out,
    log_axis,
    name_entries,
    name_first,
    names_axis,
    pick,
    points,
    ratio_axis,
    reference_line,
    stack,
    zero_axis,
)

MAX_BARS = 60  # of the forest as it opens
MAX_BARS_PER_GROUP = 200
MAX_BARS_EVER = 2000  # a browser takes seconds for more
MAX_MODELS = 100  # to choose from in the figure of backends
MAX_LINES = 300  # of the figure of batch sizes
MAX_CHOICES = 12
MAX_KEYS = 4  # groups of the summary that stand beside each other in one figure of families
MAX_SERIES = 6

INTERVAL, RANGE, SINGLE = "95 % interval", "range of processes, host-bound", "no interval"
NOT_VERIFIED = "result not verified"
MARKS = {
    INTERVAL: "circle",
    RANGE: "diamond-open",
    SINGLE: "circle-open",
    NOT_VERIFIED: "x-thin-open",
}


def select_measured(entries: Sequence[Entry]) -> list[Entry]:
    """Select the trials with a speedup that can be drawn, the fastest first."""
    return sorted(filter(find_candidate, entries), key=speedup, reverse=True)


def speedup(entry: Entry) -> float:
    return _find_gain(entry).value


def _find_gain(entry: Entry) -> Gain:
    """Return what a trial gains that `select_measured` selected."""
    one = find_candidate(entry)
    assert one is not None
    return one.gain


def describe_trial(entry: Entry) -> str:
    """Describe the trial of a point, for a reader who hovers over the point."""
    name = name_trial(entry, ("backend", "variant"))
    flags = ", ".join(leave_out_housekeeping(entry.flags))
    return stack(
        join((name, prefix("batch ", show_axis(entry, "batch_size"))), ", "),
        f"speedup {show_speedup(entry)}",
        prefix("device speedup ", show_device_speedup(entry)),
        shorten(prefix("flags: ", flags), 90),
    )


def draw_forest(entries: Sequence[Entry]) -> Figure:
    """Draw every speedup with its interval, sorted; of many also the two ends, of all and per
    precision, mode and backend.
    """
    measured = select_measured(entries)
    number = len(measured)
    drawings = []
    whole = "all"
    if number > MAX_BARS:
        whole = f"all {number}"
        drawings.append(_both_ends("", measured, MAX_BARS))
        axes = find_varying(measured, ("precision", "mode", "backend"))
        names = [" ".join(show_axes(entry, axes)) for entry in measured]
        groups = group_by(names, measured)
        if 1 < len(groups) <= MAX_CHOICES:
            for name, found in sorted(groups.items()):
                drawings.append(_both_ends(f"{name}: ", found, MAX_BARS_PER_GROUP))
    if number > MAX_BARS_EVER:
        whole = f"the {MAX_BARS_EVER} fastest of {number}"
    if measured:
        drawings.append(_forest(whole, measured[:MAX_BARS_EVER]))
    caption = (
        "Eager / compiled step time by wall clock, of a script over its whole loop, on a "
        "logarithmic axis; right of 1, compiling is faster."
    )
    return Figure("forest", "Speedups, sorted", caption, drawings, "no trial has a speedup")


def _both_ends(start: str, entries: Sequence[Entry], max_entries: int) -> Drawing:
    """Draw all trials, or of more than `max_entries` the fastest and the slowest with a dotted line
    between them; `start` is how the name of the drawing starts.
    """
    if len(entries) <= max_entries:
        return _forest(f"{start}{len(entries)}", entries)
    half = max_entries // 2
    name = f"{start}{half} fastest, {half} slowest of {len(entries)}"
    line = reference_line("y", half - 0.5, dash="dot")
    return _forest(name, [*entries[:half], *entries[-half:]], line)


def _forest(name: str, entries: Sequence[Entry], *lines: Part) -> Drawing:
    marks, number = list(MARKS), len(entries)
    axes = "precision", *find_varying(entries, ("mode",))
    keys = [(show_axes(entry, axes), marks.index(_mark(entry))) for entry in entries]
    traces = []
    for (kind, rank), places in sorted(group_by(keys, range(number)).items()):
        shown = [entries[place] for place in places]
        title = ", ".join((*kind, marks[rank]))
        traces.append(_speedups(title, shown, "x", places, MARKS[marks[rank]]))
    xaxis = {**_speedup_axis(entries), "side": "top"}
    yaxis = {**names_axis(name_entries(entries)), "range": [number - 0.5, -0.5]}
    layout = lay_out(xaxis, yaxis, reference_line("x"), *lines)
    return Drawing(name, traces, 110 + 17 * number, layout)


def _speedups(
    name: str,
    entries: Sequence[Entry],
    axis: str,
    others: Sequence[float],
    symbol: str,
    **more: Any,
) -> Trace:
    """Describe points with their intervals along `axis`, and `others` along the other axis."""
    speedups = list(map(speedup, entries))
    xs, ys = (speedups, others) if axis == "x" else (others, speedups)
    shade = compiled_colour(entries[0])
    marker = {"color": shade, "symbol": symbol, "line": {"color": shade, "width": 1.6}}
    whiskers = {f"error_{axis}": error_bars(map(_ends, entries))}
    texts = list(map(describe_trial, entries))
    return points(name, xs, ys, marker, text=texts, **whiskers, **more)


def _mark(entry: Entry) -> str:
    if UNVERIFIED in entry.flags:
        return NOT_VERIFIED
    gain = _find_gain(entry)
    if gain.by_range:
        return RANGE
    return SINGLE if gain.by_margin else INTERVAL


def _ends(entry: Entry) -> tuple[float, float, float]:
    """Return the speedup between the ends of its error bar, which are the speedup itself where
    there is none.
    """
    gain = _find_gain(entry)
    if gain.by_margin:
        return gain.value, gain.value, gain.value
    return gain.low, gain.value, gain.high


def _speedup_axis(entries: Iterable[Entry]) -> Part:
    """Describe an axis that shows every speedup with its error bar."""
    return ratio_axis("speedup", chain.from_iterable(map(_ends, entries)))


def draw_backends(entries: Sequence[Entry]) -> Figure:
    """Draw the backends side by side: all models together where there are few, else a choice per
    model.
    """
    compiled = list(filter(_backend, entries))
    measured = select_measured(compiled)
    if len(set(map(_backend, compiled))) < 2:
        return Figure("backends", "Backends", missing="fewer than two backends were tried")
    failed = set()
    for entry in compiled:
        if not entry.is_ok:
            failed.add(f"{_backend(entry)} ({entry.record.status})")
    caption = "Speedup over eager."
    if failed:
        caption += f" Not ok: {', '.join(sorted(failed))}."
    series = group_by(name_entries(measured, without="backend"), measured)
    choices = {"all": series} if series else {}
    if len(series) > MAX_SERIES:
        shown = _keep_longest(series, MAX_MODELS)
        choices = {name: {name: found} for name, found in shown.items()}
        if len(shown) < len(series):
            caption += (
                f" {len(shown)} of {len(series)} to choose from: those in which most backends gave "
                "a speedup."
            )
    drawings = [_backend_bars(name, found) for name, found in choices.items()]
    return Figure("backends", "Backends", caption, drawings, "no backend gave a speedup")


def _backend(entry: Entry) -> str:
    return show_axis(entry, "backend")


def _keep_longest(series: dict[str, list[Entry]], max_series: int) -> dict[str, list[Entry]]:
    """Keep the series with the most trials, in alphabetical order."""
    longest = sorted(series, key=lambda name: (-len(series[name]), name))[:max_series]
    return {name: series[name] for name in sorted(longest)}


def _backend_bars(name: str, series: Mapping[str, Sequence[Entry]]) -> Drawing:
    """Draw a bar per backend and series; the backend with the highest speedup stands on top."""
    best = {}
    for entry in sorted(chain.from_iterable(series.values()), key=speedup):
        best[_backend(entry)] = speedup(entry)
    order = sorted(best, key=best.__getitem__)
    traces = []
    for index, (title, entries) in enumerate(series.items()):
        speedups = list(map(speedup, entries))
        places = [order.index(_backend(entry)) for entry in entries]
        shades, pattern = list(map(compiled_colour, entries)), pick(PATTERNS, index)
        hover = list(map(describe_trial, entries))
        style = {"orientation": "h", "textposition": "auto", "hovertext": hover}
        traces.append(bars(title, speedups, places, shades, pattern, speedups, **style))
    height = 110 + len(order) * (18 + 14 * len(series))
    xaxis, yaxis = zero_axis("speedup"), names_axis(order)
    layout = lay_out(xaxis, yaxis, reference_line("x"), barmode="group")
    return Drawing(name, traces, height, layout)


def draw_batch_sizes(entries: Sequence[Entry]) -> Figure:
    """Draw speedup against batch size, with a line per model and setting that was measured at
    several sizes.
    """
    measured = select_measured(entries)
    series = {}
    names = name_entries(measured, without="batch_size")
    for name, line in group_by(names, measured).items():
        if len(set(map(_batch_size, line))) > 1:
            series[name] = line
    shown = _keep_longest(series, MAX_LINES)
    caption = "Shows at which batch size compiling gives most."
    if len(shown) < len(series):
        caption += f" {len(shown)} of {len(series)} lines: those of most sizes."
    lines = list(shown.items())
    drawings = []
    for start in range(0, len(lines), MAX_SERIES):
        drawings.append(_batch_lines(dict(lines[start : start + MAX_SERIES])))
    missing = "no model has speedups at two batch sizes"
    return Figure("batch-sizes", "Speedup against batch size", caption, drawings, missing)


def _batch_size(entry: Entry) -> int:
    return entry.record.known_batch_size or 0


def _batch_lines(series: Mapping[str, Sequence[Entry]]) -> Drawing:
    traces = []
    drawn = []
    for index, (name, line) in enumerate(series.items()):
        ordered = sorted(line, key=_batch_size)
        sizes = list(map(_batch_size, ordered))
        symbol, style = pick(SYMBOLS, index), {"width": 1.8, "dash": pick(DASHES, index)}
        trace = _speedups(name, ordered, "y", sizes, symbol, mode="lines+markers", line=style)
        traces.append(trace)
        drawn += ordered
    ticks = sorted(set(map(_batch_size, drawn)))
    xaxis = log_axis("batch size", ticks)
    layout = lay_out(xaxis, _speedup_axis(drawn), reference_line("y"))
    return Drawing(name_first(list(series)), traces, 420, layout)


def draw_families(groups: Sequence[Group], references: References) -> Figure:
    """Draw geometric means in AMP and fp32 per family."""
    drawn = {}
    for key, found in group_by(map(attrgetter("key"), groups), groups).items():
        whole = found[-1]  # the last group of a key is that of `all`
        if AMP.estimate(whole) or FP32.estimate(whole):
            drawn[key] = found
    caption = (
        "Geometric means of speedups over the models of a family, with 95 % intervals for these "
        "models where known."
    )
    if references.shown:
        caption += f" Below a name: what was published for PyTorch 2.0. {references.sentence}"

    def rank(key: GroupKey) -> float:
        return ratio_of(AMP.estimate(drawn[key][-1])) or 0.0

    choices = {"all": drawn} if drawn else {}
    if len(drawn) > MAX_KEYS:
        ranked = sorted(drawn, key=rank, reverse=True)
        choices = {str(key): {key: drawn[key]} for key in ranked}
    drawings = [_family_bars(name, by_key) for name, by_key in choices.items()]
    missing = "no geometric mean: no trial in a precision with a weight has a verified speedup"
    return Figure("families", "Families", caption, drawings, missing)


def _family_bars(name: str, by_key: Mapping[GroupKey, Sequence[Group]]) -> Drawing:
    every = list(chain.from_iterable(by_key.values()))
    order = [*sorted({group.family for group in every} - {ALL}), ALL]
    common = set.intersection(*(set(key.parts) for key in by_key))
    traces = []
    modes: list[str] = []
    for key, groups in by_key.items():
        # of several keys with one mode
        pattern = pick(PATTERNS, modes.count(key.mode))
        modes.append(key.mode)
        differing = [part for part in key.parts if part not in common]
        series = ", ".join(differing) or str(key)
        places = [order.index(group.family) for group in groups]
        for mean in (AMP, FP32):
            if not mean.estimate(groups[-1]):
                continue
            title = mean.title
            if len(by_key) > 1:
                title = f"{mean.title}, {series}"
            estimates, hover = [], []
            for group in groups:
                estimate = mean.estimate(group)
                estimates.append(estimate)
                over = f"{estimated(estimate)} over {mean.describe_models(group)}"
                hover.append(stack(f"{group.family}, {title}", over))
            shades = [choose_colour(key.mode, mean.title)]
            traces.append(estimate_bars(title, places, estimates, shades, pattern, hover))
    published = {group.family: found for group in every if (found := find_published(group))}
    ticks = []
    for family in order:  # in three lines, which fit under a group of bars
        lines = [shorten(family, 20)]
        if item := published.get(family):
            lines += [item.value, f"({item.device}, {item.year})"]
        ticks.append(stack(*lines))
    xaxis = {
        "tickvals": list(range(len(order))),
        "ticktext": ticks,
        "range": [-0.6, len(order) - 0.4],
        "tickangle": 0,
    }
    yaxis = zero_axis("speedup")
    layout = lay_out(xaxis, yaxis, reference_line("y"), barmode="group", bargap=0.25)
    return Drawing(name, traces, 400, layout)
