"""The arithmetic of benchmarks/headroom.py, which needs a GPU to measure anything."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from benchmark_scripts import BENCHMARKS, load_script
from records import make_process

from sweeper.core.record import PerArm

HEADROOM = load_script("headroom")


def take_turn(alone_s: float, wall_s: float, slowdown: float, host_s: float = 0.010) -> Any:
    return HEADROOM.Turn(
        {"1.0": alone_s, "2.5": wall_s}, {"1.0": 0.5, "2.5": 0.5 * slowdown}, host_s
    )


@pytest.mark.parametrize(
    ("slowdown", "wall_s", "load", "predicted_s", "is_near", "is_right"),
    [
        (1.0, 0.0202, 0.5, 0.020, False, True),
        (1.5, 0.0202, 0.75, 0.020, False, True),
        (2.0, 0.0240, 1.0, 0.020, True, False),
        (3.0, 0.0306, 1.5, 0.030, False, True),
        (3.0, 0.0288, 1.5, 0.030, False, False),
    ],
)
def test_a_step_is_judged_by_the_slower_of_host_and_device(
    slowdown: float, wall_s: float, load: float, predicted_s: float, is_near: bool, is_right: bool
) -> None:
    found = HEADROOM.judge([take_turn(0.020, wall_s, slowdown)], 0.020, "2.5")
    assert (found.slowdown, found.measured_s) == (slowdown, wall_s)
    assert (found.load, found.predicted_s) == (pytest.approx(load), pytest.approx(predicted_s))
    assert found.difference == pytest.approx(wall_s / predicted_s - 1)
    assert (found.is_near, found.is_right) == (is_near, is_right)


def test_a_step_that_waits_for_its_host_says_what_the_host_takes() -> None:
    turns = [take_turn(alone_s, 3.0 * alone_s, 3.0) for alone_s in (0.030, 0.060, 0.042)]
    found = HEADROOM.judge(turns, 0.020, "2.5")
    assert (found.host_s, found.difference) == (pytest.approx(0.044), pytest.approx(0.0))


@pytest.mark.parametrize(("device_s", "why"), [(None, "is not known"), (0.0167, "is 1.20")])
def test_a_reference_that_says_nothing_of_the_host_is_refused(
    device_s: float | None, why: str
) -> None:
    reference = make_process()  # of steps of 0.02 s
    HEADROOM.require_host_bound(replace(reference, device_step_s=PerArm(0.015, 0.015)))
    with pytest.raises(ValueError, match=why):
        HEADROOM.require_host_bound(replace(reference, device_step_s=PerArm(device_s, device_s)))


def test_the_error_is_that_of_a_mean_where_the_turns_differ_in_the_step_alone() -> None:
    errors = (-0.04, -0.02, 0.0, 0.02, 0.04)
    turns = [take_turn(0.020, 0.060 * (1 + error), 3.0, host_s=0.020) for error in errors]
    found = HEADROOM.judge(turns, 0.010, "2.5")
    assert found.difference == pytest.approx(0.0)
    assert found.error == pytest.approx(stdev(errors) / math.sqrt(len(errors)))


def test_a_single_turn_has_no_error() -> None:
    assert HEADROOM.judge([take_turn(0.020, 0.060, 3.0)], 0.020, "2.5").error is None


def test_rows_say_what_is_near_wrong_or_unknown() -> None:
    walls, reference = (
        {"1.0": 0.020, "1.5": 0.0202, "2.5": 0.033},
        {"1.0": 0.1, "1.5": 0.2, "2.5": 0.3},
    )
    turns = {arm: [HEADROOM.Turn(walls, reference, 0.010)] for arm in ("eager", "compiled")}
    known = HEADROOM.Figures(turns, {"compiled": 0.020}, "eager: the step waits")
    rows = list(HEADROOM.describe("vit", known))
    assert [texts[0] for texts, _ in rows] == ["vit eager"] * 3 + ["vit compiled"] * 3
    assert {len(texts) for texts, _ in rows} == {len(HEADROOM.HEADINGS)}
    assert [texts[-1] for texts, _ in rows] == ["unknown: eager: the step waits"] * 3 + [
        "",
        "near",
        "WRONG",
    ]
    assert [found is None for _, found in rows] == [True] * 3 + [False] * 3
    assert rows[-1][0][5:10] == ["1.50", "30.000", "33.000", "+10.0%", ""]


def wait_for(pid: int, change: int) -> int:
    """The status of a child after a change of its state; 0 where none comes."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen, status = os.waitpid(pid, change | os.WNOHANG)
        if seen:
            return status
    return 0


def test_a_slowed_process_is_stopped_time_and_again_and_goes_on_afterwards() -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from headroom import slow_down

with slow_down(1.5):
    sys.stdin.readline()
"""
    command = [sys.executable, "-c", script, str(BENCHMARKS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as slowed:
        for _ in range(5):
            assert os.WIFSTOPPED(wait_for(slowed.pid, os.WUNTRACED))
            assert os.WIFCONTINUED(wait_for(slowed.pid, os.WCONTINUED))
        slowed.communicate(b"\n", timeout=60)
    assert slowed.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopper_that_is_ended_leaves_no_process_stopped(number: signal.Signals) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        command = [sys.executable, "-c", HEADROOM.STOPPER, str(victim.pid), "0.001", "0.001"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as stopper:
            for _ in range(5):
                wait_for(victim.pid, os.WUNTRACED | os.WCONTINUED)
            stopper.send_signal(number)
            assert stopper.wait(timeout=60) == 1
        victim.terminate()
        assert victim.wait(timeout=60) == -signal.SIGTERM


def test_a_stopper_that_fails_is_no_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEADROOM, "STOPPER", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended with 3"), HEADROOM.slow_down(2.0):
        pass


def test_figures_of_another_machine_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "headroom.jsonl"
    assert HEADROOM.read(file, {"device": "cpu"}) == {}
    figures = HEADROOM.Figures({"eager": [take_turn(0.01, 0.03, 3.0)]}, {"eager": 0.02})
    line = {"overrides": "model=a", "machine": {"device": "cpu"}, "figures": asdict(figures)}
    file.write_text(json.dumps(line))
    assert HEADROOM.read(file, {"device": "cpu"}) == {"model=a": figures}
    with pytest.raises(SystemExit, match="give another --output"):
        HEADROOM.read(file, {"device": "a GPU"})
