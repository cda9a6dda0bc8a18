from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import script_runs
from records import make_record, make_trial, write_sweep

from sweeper.core.settings import Measure
from sweeper.core.system.gpus import Device
from sweeper.core.trial import Compile, Trial
from sweeper.execution.placement import DeviceShare, Placement
from sweeper.sweep.estimate import (
    History,
    ProcessTimes,
    describe_script_runs,
    estimate_s,
    read_history,
)


def test_a_trial_takes_what_it_took_or_what_similar_ones_took() -> None:
    def trial(name: str, batch_size: int, **axes: object) -> Trial:
        return replace(make_trial(name), batch_size=batch_size, **axes)

    history = History(
        [
            (trial("a", 1), ProcessTimes(9.0, 8.0)),
            (trial("a", 1), ProcessTimes(10.0, 3.0)),
            (trial("a", 2), ProcessTimes(30.0, 5.0)),
            (trial("b", 1), ProcessTimes(2.0, 1.0)),
        ]
    )
    assert history.expect(trial("a", 1)) == (10.0, 3.0), "the last time"
    assert history.expect(trial("a", 4)) == (10.0, 5.0), "the medians of 9, 10, 30 and of 8, 3, 5"
    unlike = [
        trial("c", 4),
        trial("a", 1, mode="max-autotune"),
        trial("a", 1, workload="inference"),
        trial("a", 1, compile=Compile(scope="step")),
        trial("a", 1, model=replace(trial("a", 1).model, image_size=32)),
    ]
    assert [history.expect(one) for one in unlike] == [None] * len(unlike)
    order = history.longest_first(
        [trial("b", 1), trial("a", 1), trial("c", 1), trial("a", 2), trial("b", 2)]
    )
    assert order == (trial("a", 2), trial("a", 1), trial("c", 1), trial("b", 1), trial("b", 2))


def test_without_a_history_nothing_is_expected_and_the_order_stays() -> None:
    trials = [make_trial("a"), make_trial("b")]
    assert [History([]).expect(trial) for trial in trials] == [None, None]
    assert History([]).longest_first(trials) == tuple(trials)


def test_estimate_divides_what_can_go_on_beside() -> None:
    assert estimate_s(80.0, 30.0, devices=1, concurrency=1) == 80.0
    assert estimate_s(80.0, 30.0, devices=1, concurrency=5) == 30.0 + 50.0 / 5
    assert estimate_s(80.0, 30.0, devices=2, concurrency=5) == 15.0 + 25.0 / 5


def make_script_trial(path: str, arguments: str = "", **axes: object) -> Trial:
    return replace(script_runs.make_trial(path, arguments), **axes)


def test_a_script_takes_what_it_took_with_other_arguments_or_another_mode() -> None:
    earlier = [
        (make_script_trial("a.py", "--x 1"), ProcessTimes(9.0, 8.0)),
        (make_script_trial("a.py", "--x 2", mode="max-autotune"), ProcessTimes(30.0, 8.0)),
        (make_script_trial("b.py"), ProcessTimes(99.0, 9.0)),
    ]
    history = History(earlier)
    assert history.expect(make_script_trial("a.py", "--x 1")) == (9.0, 8.0)
    assert history.expect(make_script_trial("a.py", "--x 3")) == (19.5, 8.0), "of 9 and 30"
    assert history.expect(make_script_trial("c.py")) is None
    assert history.expect(make_script_trial("a.py", python="/other/python")) is None


@pytest.mark.parametrize(
    ("measure", "trajectory", "times"),
    [
        (Measure(processes=1), None, "3 times"),
        (Measure(processes=3, draws=2), None, "18 times"),
        (Measure(processes=1, target=0.01, max_processes=9), None, "15 to 27 times"),
        (Measure(processes=3), 20, "10 times"),
    ],
)
def test_how_often_a_script_runs_is_told(
    measure: Measure, trajectory: int | None, times: str
) -> None:
    one = make_script_trial("a.py")
    if trajectory:
        one = replace(one, model=replace(one.model, arguments={"trajectory": trajectory}))
    (line,) = describe_script_runs([one, make_trial("resnet50")], measure)
    assert line.startswith(f"a.py will run {times}: in each process for ")
    assert ("model.trajectory" in line) is bool(trajectory)


def test_runs_of_one_script_are_added_up() -> None:
    both = [make_script_trial("a.py", f"--x {number}") for number in range(2)]
    (first, second) = describe_script_runs([*both, make_script_trial("b.py")], Measure(processes=1))
    assert first.startswith("a.py will run 6 times")
    assert second.startswith("b.py will run 3 times")


def test_a_file_that_each_run_overwrites_is_named_before_the_first_one(
    in_empty_folder: Path,
) -> None:
    Path("a.py").write_text("torch.save(model.state_dict(), 'best.pt')\n")
    assert len(list(describe_script_runs([make_script_trial("a.py")], Measure()))) == 1
    Path("best.pt").touch()
    _, said = describe_script_runs([make_script_trial("a.py")], Measure())
    assert said == "a.py:1 overwrites best.pt in each run"


def test_a_record_that_vanishes_meanwhile_is_no_record(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(Path("runs"), [make_record("resnet50"), make_record("resnet18")])
    first, second = sorted(Path("runs").glob("*/*/record.json"))
    real = Path.lstat

    def vanish(path: Path) -> os.stat_result:
        if path == first:
            first.unlink(missing_ok=True)
        return real(path)

    monkeypatch.setattr(Path, "lstat", vanish)
    read_history(Placement("the CPU", (DeviceShare(Device("cpu")),)), Measure())
    assert not first.exists()
    assert second.exists()
