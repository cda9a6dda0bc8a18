"""Whether a script trains compiled as it trains in eager, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_script
from reports import report_on

from sweeper.core.record import Trajectory
from sweeper.report.answers.scripts import conclude
from sweeper.report.answers.trajectories import describe, name_verdict

SAME = Trajectory(300, True, steps=300)
DIFFERS = replace(
    SAME,
    passed=False,
    worst="gradient of a",
    kind="typical",
    reference="eager",
    value=0.02,
    yardstick=1e-6,
    limit=1e-4,
)


@pytest.mark.parametrize(
    ("trajectory", "verdict", "said"),
    [
        (None, None, []),
        (SAME, "same", ["it trains as in eager: no fault was found in 300 steps"]),
        (
            replace(SAME, steps=40),
            "same",
            ["it trains as in eager: no fault was found in 40 of 300 steps"],
        ),
        (
            DIFFERS,
            "differs",
            [
                "it does not train as in eager: the compiled gradient of a differs from that of "
                "eager by 2.00 % or "
                "more in half of the steps (the limit is 0.01 %), in 300 steps"
            ],
        ),
        (
            replace(DIFFERS, value=None, kind="worst"),
            "differs",
            [
                "it does not train as in eager: the compiled gradient of a is not finite in one "
                "step, in 300 steps"
            ],
        ),
        (Trajectory(0, None, "no"), "unknown", ["whether it trains as in eager is not known: no"]),
    ],
)
def test_verdicts_in_words(
    trajectory: Trajectory | None, verdict: str | None, said: list[str]
) -> None:
    assert name_verdict(trajectory) == verdict
    assert list(describe(trajectory, 300)) == said


@pytest.mark.parametrize(
    ("trajectory", "said"),
    [
        (SAME, "; trains as in eager"),
        (DIFFERS, "; does not train as in eager"),
        (Trajectory(0, None, "no"), "; whether it trains as in eager is not known"),
        (None, ""),
    ],
)
def test_the_verdict_is_in_the_line_of_the_script(
    tmp_path: Path, trajectory: Trajectory | None, said: str
) -> None:
    report = report_on(tmp_path, [make_script("train.py", {}, trajectory=trajectory)])
    (line,) = conclude(report.findings.answers)
    assert line.endswith(said)
    assert ("in eager" in line) == bool(said)


def test_the_command_for_another_run_names_no_precision_of_a_script(tmp_path: Path) -> None:
    record = replace(make_script("train.py", {}), flags=("host_busy", "unsteady"))
    command = "python -m sweeper model=script model.path=train.py"
    (again,) = report_on(tmp_path, [record], command).verdict.again
    assert "model.path=train.py" in again.command
    assert "precision" not in again.command
