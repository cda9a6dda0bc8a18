"""The figure of trainings of scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pages import drawn, loaded
from records import make_record, make_script

from sweeper.core.record import Training, Trajectory
from sweeper.report.page import training_figure


def test_losses_are_a_line_for_each_seed_and_arm(tmp_path: Path) -> None:
    losses = {("eager", 0): (3.0, 2.0), ("eager", 1): (4.0, None), ("compiled", 0): (3.0, 2.1)}
    trainings = tuple(
        Training(arm, shift, 20, 10, found, found) for (arm, shift), found in losses.items()
    )
    record = make_script("train.py", {}, trajectory=Trajectory(300, True, trainings=trainings))
    entries, rows = loaded(tmp_path, [record, make_record()])
    figure = training_figure.draw_trainings(entries, rows)
    assert figure is not None
    assert [choice.name for choice in figure.choices] == ["train.py"]
    eager, compiled = drawn(figure)
    assert (eager["x"], eager["y"]) == (
        [10, 20, None, 10, 20, None],
        [3.0, 2.0, None, 4.0, None, None],
    )
    assert (compiled["x"], compiled["y"]) == ([10, 20, None], [3.0, 2.1, None])
    nothing = replace(record, processes=())
    assert training_figure.draw_trainings(*loaded(tmp_path / "nothing", [nothing])) is None
