"""The figures of scripts: sizes that a loop saw, and losses of trainings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pages import drawn, loaded, write_page
from records import make_record, make_script

from sweeper.core.record import Training, Trajectory
from sweeper.report.page import script_figure, training_figure

NINE = {8: 3, **{10 + size: size for size in range(1, 9)}}


def test_sizes_that_a_loop_saw_are_a_histogram_with_the_sizes_to_pad_to(tmp_path: Path) -> None:
    records = [
        make_script("train.py", NINE, pad_to=(14, 18)),
        make_script("one.py", {8: 3}),
        make_record(),
    ]
    figure = script_figure.draw_sizes(*loaded(tmp_path, records))
    assert [choice.name for choice in figure.choices] == ["train.py: 9 shapes"]
    bars, lines = drawn(figure)
    assert dict(zip(bars["x"], bars["y"], strict=True)) == NINE
    assert bars["hovertext"][:2] == ["size 8", "size 11"]
    # behind the size, not through its bar
    assert lines["x"] == [14.5, 14.5, None, 18.5, 18.5, None]
    assert [text for text in lines["text"] if text] == ["14", "18"]


def test_few_shapes_are_drawn_without_sizes_to_pad_to(tmp_path: Path) -> None:
    records = [make_script("train.py", {8: 1, 32: 60}, pad_to=(32,))]
    (bars,) = drawn(script_figure.draw_sizes(*loaded(tmp_path, records)))
    assert (bars["x"], bars["y"]) == ([8, 32], [1, 60])


def test_many_sizes_share_bars(tmp_path: Path) -> None:
    sizes = dict.fromkeys(range(1000, 1250), 1)
    (bars,) = drawn(script_figure.draw_sizes(*loaded(tmp_path, [make_script("train.py", sizes)])))
    assert (len(bars["x"]), sum(bars["y"])) == (84, 250)
    assert (bars["x"][0], bars["y"][0], bars["hovertext"][0]) == (1001, 3, "sizes 1,000 to 1,002")
    assert bars["y"][-1] == 1


def test_sizes_of_many_scripts_are_those_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_figure, "MAX_TRIALS", 2)
    records = [make_script(f"{name}.py", NINE) for name in "abc"]
    figure = script_figure.draw_sizes(*loaded(tmp_path, records))
    assert [choice.name for choice in figure.choices] == ["a.py: 9 shapes", "b.py: 9 shapes"]
    assert figure.caption.endswith(" The first 2 of 3 trials.")


def test_only_a_page_with_a_script_speaks_of_its_sizes(tmp_path: Path) -> None:
    left_out = (
        "Sizes in a script&#39;s loop: left out, no script has shapes that differ in one dimension."
    )
    for name, records, is_drawn, is_left_out in (
        ("no script", [], False, False),
        ("one shape", [make_script("train.py", {8: 3})], False, True),
        ("several", [make_script("train.py", NINE)], True, False),
    ):
        text = write_page(tmp_path / name, [make_record(), *records])
        figures = re.findall(r'<section class="figure"[^>]*data-figure="([^"]+)"', text)
        assert ("script-sizes" in figures, left_out in text) == (is_drawn, is_left_out), name


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
