"""The arithmetic of benchmarks/headroom.py, which needs a GPU to measure anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import BENCHMARKS, load_script

HEADROOM = load_script("headroom")


def figures(host_s: dict[str, float], device_s: dict[str, float], **wall_s: float) -> Any:
    """`wall_s` by factor, `x2_5` for 2.5, equal in both arms."""
    walls = {name[1:].replace("_", "."): {"eager": time_s, "compiled": time_s} for name, time_s in wall_s.items()}
    return HEADROOM.Figures(host_s, device_s, walls, "eager: the step waits")


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
    found = HEADROOM.judge(0.010, 0.020, slowdown, wall_s)
    assert (found.load, found.predicted_s) == (pytest.approx(load), pytest.approx(predicted_s))
    assert found.difference == pytest.approx(wall_s / predicted_s - 1)
    assert (found.is_near, found.is_right) == (is_near, is_right)


def test_a_host_bound_reference_takes_as_many_times_longer_as_the_host() -> None:
    reference = figures({"eager": 0.030}, {"eager": 0.010}, x1_0=0.031, x1_5=0.0465, x2_5=0.0775)
    assert HEADROOM.find_slowdowns(reference) == pytest.approx({"1.0": 1.0, "1.5": 1.5, "2.5": 2.5})


@pytest.mark.parametrize(
    ("host_s", "device_s", "why"),
    [({}, {"eager": 0.01}, "eager: the step waits"), ({"eager": 0.012}, {"eager": 0.010}, "h / d is 1.20")],
)
def test_a_reference_that_says_nothing_of_the_host_is_refused(
    host_s: dict[str, float], device_s: dict[str, float], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        HEADROOM.find_slowdowns(figures(host_s, device_s, x1_0=0.01, x1_5=0.02))


def test_rows_say_what_is_near_wrong_or_unknown() -> None:
    known = figures({"compiled": 0.010}, {"eager": 0.030, "compiled": 0.020}, x1_0=0.020, x2_0=0.0202, x3_0=0.033)
    rows = list(HEADROOM.describe("vit", known, {"1.0": 1.0, "2.0": 2.0, "3.0": 3.0}))
    assert [texts[0] for texts, _ in rows] == ["vit eager"] * 3 + ["vit compiled"] * 3
    assert {len(texts) for texts, _ in rows} == {len(HEADROOM.HEADINGS)}
    assert [texts[-1] for texts, _ in rows] == ["unknown: eager: the step waits"] * 3 + ["", "near", "WRONG"]
    assert [found is None for _, found in rows] == [True] * 3 + [False] * 3
    assert rows[-1][0][5:9] == ["1.50", "30.000", "33.000", "+10.0%"]


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
    line = {"overrides": "model=a", "machine": {"device": "cpu"}, "figures": {"host_s": {"eager": 0.01}}}
    file.write_text(json.dumps(line))
    assert HEADROOM.read(file, {"device": "cpu"})["model=a"].host_s == {"eager": 0.01}
    with pytest.raises(SystemExit, match="give another --output"):
        HEADROOM.read(file, {"device": "a GPU"})
