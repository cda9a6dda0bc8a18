"""The figure of ladders: per model a bar for each rung, from eager as built to torch.compile."""

from collections.abc import Sequence

from sweeper.core.ladder import COMPILED_RUNGS, RUNGS
from sweeper.report.answers.ladders import LadderAnswer, Rung, find_ladder_axes
from sweeper.report.columns.formats import estimated, prefix

from .plotly_parts import (
    PATTERNS,
    Drawing,
    Figure,
    Trace,
    choose_colour,
    estimate_bars,
    lay_out,
    name_first,
    names_axis,
    pick,
    reference_line,
    stack,
    zero_axis,
)

MAX_LADDERS = 6  # beside each other


def draw_ladders(ladders: Sequence[LadderAnswer]) -> Figure:
    """Draw the speedups over eager as built of the rungs of each ladder."""
    measured = [ladder for ladder in ladders if any(rung.speedup for rung in ladder.rungs)]
    caption = (
        "Speedup over eager as built, with 95 % intervals where known. Each rung adds to those "
        "before it; the compiled ones have every one-liner and do without the graph by hand."
    )
    axes = find_ladder_axes(ladders)
    drawings = []
    for start in range(0, len(measured), MAX_LADDERS):
        drawings.append(_draw(measured[start : start + MAX_LADDERS], axes))
    title = "How much of the speedup comes from torch.compile"
    missing = "no model has a ladder: experiment=ladder runs one"
    return Figure("ladder", title, caption, drawings, missing)


def _draw(ladders: Sequence[LadderAnswer], axes: Sequence[str]) -> Drawing:
    names = [ladder.name(axes) for ladder in ladders]
    bars: dict[str, list[tuple[int, Rung]]] = {}  # with the place of the ladder, by title
    for place, ladder in enumerate(ladders):
        for rung in ladder.rungs:
            if rung.speedup:
                bars.setdefault(rung.title, []).append((place, rung))
    traces = []
    for title, found in sorted(bars.items(), key=lambda item: _rank(item[1][0][1])):
        traces.append(_draw_rungs(title, found, names))
    yaxis = zero_axis("speedup over eager as built")
    xaxis = {**names_axis(names), "range": [-0.6, len(names) - 0.4]}
    layout = lay_out(xaxis, yaxis, reference_line("y"), barmode="group", bargap=0.2)
    return Drawing(name_first(names), traces, 420, layout)


def _draw_rungs(title: str, found: Sequence[tuple[int, Rung]], names: Sequence[str]) -> Trace:
    """Draw the rungs of one title, compiled ones in the colours of their modes and others in that
    of eager.
    """
    first = found[0][1]
    is_compiled = first.step.rung in COMPILED_RUNGS
    pattern = "" if is_compiled else pick(PATTERNS, _rank(first))
    places, speedups, colours, hover = [], [], [], []
    for place, rung in found:
        trial = rung.entry.trial
        mode = trial.mode if is_compiled else "eager"
        colours.append(choose_colour(mode, trial.labels.precision))
        over_before = ""
        if rung.over_before and rung.before:
            over_before = f"over {rung.before.title} {estimated(rung.over_before)}"
        hover.append(
            stack(
                f"{names[place]}, {title}",
                f"over eager as built {estimated(rung.speedup)}",
                over_before,
                prefix("over strongest eager ", estimated(rung.over_strongest)),
            )
        )
        places.append(place)
        speedups.append(rung.speedup)
    return estimate_bars(title, places, speedups, colours, pattern, hover)


def _rank(rung: Rung) -> int:
    """The place of a rung; one with compile settings of its own stands with that of its mode."""
    return RUNGS.index(rung.step.rung)
