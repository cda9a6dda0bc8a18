"""The figure of the trainings of scripts: losses of both arms, by several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sweeper.core.record import ARMS, Training
from sweeper.loading.entries import Entry
from sweeper.report.page import figure_base as base
from sweeper.report.table import Row

MAX_TRIALS = 100
CAPTION = (
    "Losses that the script called backward on, a line for each seed. Both arms of a seed begin "
    "alike; where lines of "
    "different seeds lie further apart than those of different arms, the seed matters more than "
    "compiling."
)
COLOURS: Mapping[str, Callable[[Row], str]] = {
    "eager": base.eager_colour,
    "compiled": base.row_colour,
}


def draw_trainings(entries: Sequence[Entry], rows: Sequence[Row]) -> base.Figure | None:
    """Draw the losses per trial; `rows` are the rows of speedups.csv for `entries`. None where no
    trial has any.
    """
    pairs = [(_read_trainings(entry), row) for entry, row in zip(entries, rows, strict=True)]
    found = [(trainings, row) for trainings, row in pairs if trainings]
    axes = base.find_naming_axes([row for _, row in found])
    choices = [
        _draw(trainings, row, base.name_row(row, axes)) for trainings, row in found[:MAX_TRIALS]
    ]
    return base.Figure("trainings", "Losses of both arms", CAPTION, choices) if choices else None


def _read_trainings(entry: Entry) -> Sequence[Training]:
    script = entry.result.seen_of_script
    return script.trajectory.trainings if script and script.trajectory else ()


def _draw(trainings: Sequence[Training], row: Row, name: str) -> base.Choice:
    """Draw a trace per arm; None ends the line of a seed."""
    traces = []
    for arm in ARMS:
        of_arm = [training for training in trainings if training.arm == arm]
        xs = [
            x
            for one in of_arm
            for x in (*(one.every * (place + 1) for place in range(len(one.losses))), None)
        ]
        ys = [y for one in of_arm for y in (*one.losses, None)]
        marker = {"color": COLOURS[arm](row), "size": 4}
        style = {
            "mode": "lines+markers",
            "line": {"width": 1.4, "dash": "dash" if arm == "eager" else "solid"},
        }
        if of_arm:
            traces.append(base.points(arm, xs, ys, marker, hoverinfo="name+x+y", **style))
    xaxis, yaxis = base.zero_axis("steps"), {"title": {"text": "loss"}}
    return base.Choice(name, traces, base.lay_out(340, xaxis, yaxis))
