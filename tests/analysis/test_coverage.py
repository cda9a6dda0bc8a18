"""The 95 % intervals hold the truth in 95 of 100 simulated trials: the fast part of
benchmarks/coverage.py.
"""

from __future__ import annotations

import pytest
from benchmark_scripts import load_script

pytestmark = pytest.mark.slow


SIMULATION = load_script("coverage")
SCENARIOS = {scenario.text: scenario for scenario in SIMULATION.scenarios()}


def covered(text: str) -> float:
    return float(SIMULATION.coverage(SIMULATION.outcomes(SCENARIOS[text], SIMULATION.REPEATS)))


@pytest.mark.parametrize(
    "text",
    [
        "3 processes, sd 0.3% between them",
        "3 processes, sd 1.0% between them, blocks AR(1) 0.8",
        "5 processes, sd 0.3% between them, blocks AR(1) 0.8",
        "3 draws of 1, sd 0.5% between draws",
        "3 draws of 3, sd 0.0% between draws",
        "3 draws of 3, sd 1.0% between draws",
        "2 draws of 2, sd 1.0% between draws; truth: these artifacts",
        "8 other trials of 3 processes, plain t",
        "8 other trials of 3 processes, moderated t",
        "8 host-bound trials of 5 processes, plain t",
        "8 host-bound trials of 5 processes, moderated t",
        "prediction from 3 models",
        "prediction from 12 models",
    ],
)
def test_intervals_hold_the_truth_in_95_of_100(text: str) -> None:
    assert 0.93 < covered(text) < 0.97


def test_stopping_at_a_narrow_interval_costs_little() -> None:
    assert 0.90 < covered("5 to 15 processes until ±1 %, sd 1.0%") < 0.97


def test_three_processes_do_not_cover_a_host_with_two_humps() -> None:
    # All three lie in one hump in a quarter of the trials: why such a trial shows its range and no
    # interval.
    assert 0.70 < covered("3 processes, two humps 27 % apart") < 0.80


@pytest.mark.parametrize("host", [False, True])
def test_a_simulated_trial_is_as_host_bound_as_it_should_be(host: bool) -> None:
    random = SIMULATION.np.random.default_rng(1)
    results = [entry.result for entry in SIMULATION.half_of_sweep(random, host)]
    assert {result.host_bound_arms for result in results} == ({"compiled"} if host else {None})
    assert all(result.interval == "processes" for result in results)
