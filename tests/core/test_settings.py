from __future__ import annotations

from typing import Any

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.serialization import to_json
from sweeper.core.settings import POSITIVE, Measure, Scheduler, Settings, check_settings


def settings(prepare: int | None = None, **measure: Any) -> Settings:
    return Settings("s", measure=Measure(**measure), scheduler=Scheduler(prepare))


@pytest.mark.parametrize(
    "given",
    [
        settings(),
        settings(prepare=1, target=0.5, max_processes=5),
        settings(draws=3, max_processes=1),  # which is for a target alone
        settings(phase_timeouts_s={"compiling": 0.1}),
    ],
)
def test_settings_that_can_be_run_are_returned_as_they_are(given: Settings) -> None:
    assert check_settings(given) is given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(
            (settings(**{name: 0}), f"measure.{name}=0: it must be greater than 0")
            for name in POSITIVE
        ),
        (settings(rounds=-1), "measure.rounds=-1: it must"),
        (settings(timeout_s=float("nan")), "measure.timeout_s=nan: it must"),
        (
            settings(phase_timeouts_s={"compiling": 0}),
            "measure.phase_timeouts_s.compiling=0: it must be greater",
        ),
        (
            settings(phase_timeouts_s={"compile": 9}),
            "there is no such phase; nearest: compiling\nphases: starting, ",
        ),
        (settings(target=0.51), "measure.target=0.51: a share of the speedup, at most 0.5"),
        (
            settings(target=0.02, draws=2),
            "it wants measure.draws=1 and measure.max_processes of at least 5",
        ),
        (settings(target=0.02, max_processes=4), "it wants measure.draws=1"),
        (settings(prepare=0), "scheduler.prepare=0: a whole number of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: Settings, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(given)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({}, 2, 8),
        ({"max_processes": 4}, 2, 4),
        ({"max_processes": 1}, 2, 2),
        ({"processes": 1}, 1, 1),
        ({"processes": 3, "max_processes": 8}, 3, 3),
        ({"draws": 3}, 6, 6),
        ({"target": 0.02}, 5, 15),
    ],
)
def test_the_answer_decides_how_many_processes_there_are_where_no_number_is_given(
    given: dict[str, Any], least: int, most: int
) -> None:
    measure = Measure(**given)
    assert (measure.process_minimum, measure.process_limit) == (least, most)
    assert measure.goes_on_until_sure is (given.keys() <= {"max_processes"})


def test_most_processes_of_a_trial() -> None:
    assert Measure(processes=3, draws=2, max_processes=15).process_limit == 6
    assert Measure(processes=3, target=0.02, max_processes=15).process_limit == 15
    assert Measure(processes=20, target=0.02, max_processes=15).process_limit == 20
    assert Measure(processes=3, draws=2, max_processes=15).process_minimum == 6
    assert Measure(processes=3, target=0.02, max_processes=15).process_minimum == 5
    assert Measure(processes=20, target=0.02, max_processes=15).process_minimum == 20


def test_limits_change_no_figure_and_a_maximum_only_where_there_is_a_target() -> None:
    assert (
        Measure(timeout_s=1, warmup_s=1, back_off=False, max_processes=9).figure_settings()
        == Measure().figure_settings()
    )
    assert Measure(target=0.02, max_processes=9).figure_settings()["max_processes"] == 9
    changed = Measure(rounds=7, seed=3, clock="step").figure_settings()
    assert (changed["rounds"], changed["seed"], changed["clock"]) == (7, 3, "step")


def test_defaults_are_those_of_the_docs() -> None:
    """A trial is measured in processes of ten rounds until it is sure; MLflow, locks and a smaller
    batch are on.
    """
    assert to_json(Settings("s")) == {
        "sweep": "s", "device": None, "sweep_time_s": None, "dry_run": False, "retry": "failed",
            "inspect": False,
        "measure": {
            "processes": None, "draws": 1, "target": None, "max_processes": None, "rounds": 10,
            "rounds_s": None,
            "block_s": None, "block_steps": None, "clock": "block", "energy": False,
            "warmup_s": 10.0,
            "timeout_s": 1800.0, "phase_timeouts_s": {}, "back_off": True, "seed": 1337,
        },
        "tracking": {"enabled": True, "uri": None},
        "scheduler": {"prepare": None, "locks": True},
    }  # fmt: skip
