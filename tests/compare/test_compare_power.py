"""False alarms and power of a comparison on simulated sweeps: the fast part of
benchmarks/compare_power.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from benchmark_scripts import BENCHMARKS, load_script

pytestmark = pytest.mark.xdist_group("compare power")  # which share what takes seconds to draw
SIMULATION = load_script("compare_power")
DESIGNS = {design.text: design for design in [*SIMULATION.designs(), *SIMULATION.size_designs()]}
RECORDS = BENCHMARKS.parent / "docs" / "results" / "records"


@cache
def outcomes(text: str, slowed: int, repeats: int) -> list[Any]:
    return list(SIMULATION.outcomes(DESIGNS[text], slowed, repeats))


@pytest.mark.parametrize(
    "text",
    [
        "5 processes, process 0.3%, draw 0.0%, session 1%",
        pytest.param(
            "5 processes, process 0.6%, draw 0.0%, session 0%",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "5 processes, process 0.6%, draw 0.0%, session 0%, shift 0.9%",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "3 draws of 3, process 0.3%, draw 0.5%, session 1%",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "3 draws of 3, process 0.6%, draw 1.0%, session 0%",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "5 draws of 3, process 0.6%, draw 1.0%, session 0%, shift 0.9%",
            marks=pytest.mark.slow,
        ),
        "1 process, process 0.6%, draw 0.5%, session 0%",
        pytest.param(
            "1 process, process 0.6%, draw 0.0%, session 0%, host-bound, slow host 36%",
            marks=pytest.mark.slow,
        ),
        "3 processes, process 0.6%, draw 0.0%, session 0%, host-bound, slow host 36%",
        "2 processes, process 0.6%, draw 0.0%, session 0%, models differ in noise",
        pytest.param(
            "3 draws of 3, process 0.6%, draw 1.0%, session 0%, device 0.2%",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_hundred_models_that_did_not_change_are_flagged_in_five_of_a_hundred_sweeps_at_most(
    text: str,
) -> None:
    assert SIMULATION.alarms(outcomes(text, 0, 40)) <= 0.05


@pytest.mark.parametrize(
    ("noise", "slowed"),
    [("0.3", 50), ("0.6", 1), ("0.6", 50), pytest.param("0.3", 1, marks=pytest.mark.slow)],
)
def test_five_processes_of_one_artifact_find_three_percent(noise: str, slowed: int) -> None:
    text = f"5 processes, process {noise}%, draw 0.0%, session 0%"
    assert SIMULATION.power(outcomes(text, slowed, 40 if slowed == 1 else 4)) >= 0.9


def test_what_did_not_change_is_mostly_shown_to_be_the_same() -> None:
    assert (
        SIMULATION.same(outcomes("5 processes, process 0.6%, draw 0.0%, session 0%", 0, 10)) > 0.9
    )


def test_three_draws_of_much_luck_miss_what_five_find() -> None:
    three, five = (
        SIMULATION.power(
            outcomes(f"{draws} draws of 3, process 0.3%, draw 0.5%, session 0%", 50, 4)
        )
        for draws in (3, 5)
    )
    assert three < five


def test_a_session_that_moved_by_more_than_a_percent_is_refused() -> None:
    found = outcomes("5 processes, process 0.3%, draw 0.0%, session 1%", 0, 40)
    # of two sessions, each off by 1 % (standard deviation)
    assert 0.2 < SIMULATION.refused(found) < 0.8
    assert all(item.flagged == item.same == 0 for item in found if item.refused)


def test_the_simulation_makes_the_slowdown_that_it_says() -> None:
    design = SIMULATION.Design(1, 5, 0.0001, models=2)
    row, still = SIMULATION.judge(
        SIMULATION.pairs(SIMULATION.np.random.default_rng(1), design, 1)
    ).rows
    changes = [item.changes["compiled_step_s"].estimate.ratio for item in (row, still)]
    assert changes == pytest.approx([1.03, 1.0], abs=0.001)


@pytest.mark.parametrize(
    "text",
    [
        "1 process, process 0.6%, draw 0.5%, session 0%",
        "3 processes, process 0.6%, draw 1.0%, session 0%",
    ],
)
def test_half_of_the_speed_is_missed_by_no_measure(text: str) -> None:
    design = SIMULATION.replace(DESIGNS[text], slowdown=0.5)
    assert SIMULATION.power(list(SIMULATION.outcomes(design, 50, 2))) == 1


@pytest.mark.slow
def test_no_stored_program_is_slower_than_itself() -> None:
    """One trial in two sweeps, two rounds or processes of one trial: hundreds of rows, each in both
    directions.
    """
    cells = [
        dict(zip(SIMULATION.RECORD_TITLES, row, strict=True))
        for row in SIMULATION.record_rows(RECORDS)
    ]
    alarms = {row["rows"]: int(row["SLOWER"]) + int(row["FASTER"]) for row in cells}
    drawn = next(row for row in cells if row["rows"] == "three rounds, drawn")
    # One round, drawn three times, has no variance, as no three processes.
    assert alarms.pop(drawn["rows"]) <= 0.01 * int(drawn["number"])
    # Steps that wait for hosts of unlike speed: docs/results/compare-power.md
    known = {  # pairs
        "one trial in two sweeps": 6,
        "eager arms of one eager step": 13,
        "two rounds of a process": 5,
    }
    assert {kind: alarms.pop(kind) for kind in known} == {
        kind: 2 * pairs for kind, pairs in known.items()
    }
    assert not any(alarms.values())
    assert sum(int(row["number"]) for row in cells) >= 200
    assert sum(int(row["host-bound"]) for row in cells) >= 40
    on_gpus = [row for row in cells if "CPU" not in row["rows"]]
    assert {row["200% slower: found"] for row in on_gpus} == {"100%"}
