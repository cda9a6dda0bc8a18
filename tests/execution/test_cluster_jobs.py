"""Jobs of a cluster: how they are launched, and what becomes of those that leave no record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from executions import SETTINGS, read_record, run_here, trials

from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.execution import execute as execute_module
from sweeper.execution.execute import make_cluster_launcher
from sweeper.execution.placement import Placement
from sweeper.execution.scheduler import Finished, Started

assert trials  # a fixture that every test here uses


def hear(trial: Trial, launch: Callable[[object], object]) -> Record:
    """The record that a cluster's launcher yields."""
    *_, ended = make_cluster_launcher("slurm", launch, {trial.id: ()}).run(
        [trial], SETTINGS, Placement("slurm")
    )
    assert isinstance(ended, Finished)
    return ended.record


@pytest.mark.parametrize(("seconds", "status"), [(995, "ok"), (994, "crashed")])
def test_record_of_a_job_is_as_new_as_the_job_or_a_few_seconds_older(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, seconds: int, status: str
) -> None:
    """The clocks of two machines may be 5 s apart; the job has begun at 1000 s."""
    run_here(trials[0])
    (path,) = Path("runs/s").glob("*/record.json")
    os.utime(path, (seconds, seconds))
    monkeypatch.setattr(execute_module, "time", SimpleNamespace(time=lambda: 1000.0))
    assert hear(trials[0], lambda _overrides: None).status == status


def test_job_that_was_lost_is_a_crashed_trial_and_what_the_launcher_raised_is_said(
    trials: list[Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(_overrides: object) -> None:
        raise RuntimeError("preempted")

    record = hear(trials[0], launch)
    assert (record.status, record.phase) == ("crashed", "starting")
    assert record.message == "the job of slurm ended without a record; its own log says why"
    assert read_record(trials[0]) == record
    assert capsys.readouterr().err == "note: slurm: RuntimeError: preempted\n"


def test_jobs_are_launched_together_with_their_overrides_and_none_where_there_are_no_trials(
    trials: list[Trial],
) -> None:
    launched: list[object] = []
    overrides = {trial.id: (f"batch_size={trial.batch_size}",) for trial in trials}
    launcher = make_cluster_launcher("slurm", launched.append, overrides)
    assert list(launcher.run([], SETTINGS, Placement("slurm"))) == launched == []
    events = list(launcher.run(trials[:2], SETTINGS, Placement("slurm")))
    assert launched == [[("batch_size=1",), ("batch_size=2",)]]
    assert [type(event) for event in events] == [Started, Finished] * 2


def launch_in_processes(trial: Trial, processes: int) -> Trial:
    return replace(trial, device="cuda", parallel="ddp", parallel_devices=processes)


def test_jobs_of_several_processes_ask_for_as_many_devices_and_come_last(
    trials: list[Trial],
) -> None:
    """A lost job in the first array does not keep the second from being launched."""
    asked: list[object] = []

    def launch(overrides: Sequence[Sequence[str]]) -> None:
        asked.append([*overrides])
        raise RuntimeError("preempted")

    several = [launch_in_processes(trials[0], 2), trials[1], launch_in_processes(trials[2], 2)]
    overrides = {trial.id: (str(number),) for number, trial in enumerate(several)}
    launcher = make_cluster_launcher("slurm", launch, overrides, ask_for=asked.append)
    list(launcher.run(several, SETTINGS, Placement("slurm")))
    assert asked == [1, [("1",)], 2, [("0",), ("2",)]]


def test_a_cluster_that_gives_one_device_to_each_job_refuses_trials_of_several(
    trials: list[Trial],
) -> None:
    trial = launch_in_processes(trials[0], 2)
    launcher = make_cluster_launcher("joblib", lambda _overrides: None, {trial.id: ()})
    with pytest.raises(ConfigError, match="joblib gives each job one GPU"):
        list(launcher.run([trial], SETTINGS, Placement("joblib")))


def test_launcher_that_can_start_no_job_says_so(trials: list[Trial]) -> None:
    def launch(_overrides: object) -> None:
        raise ConfigError("no such partition")

    with pytest.raises(ConfigError, match="no such partition"):
        hear(trials[0], launch)
    assert not Path("runs").exists()


def test_record_of_a_job_that_cannot_be_read_is_a_crashed_trial(trials: list[Trial]) -> None:
    def launch(_overrides: object) -> None:
        write_text(SweepPaths.of("s").trial(trials[0].label, trials[0].id).record, "{")

    *_, ended = make_cluster_launcher("slurm", launch, {trials[0].id: ()}).run(
        [trials[0]], SETTINGS, Placement("slurm")
    )
    assert isinstance(ended, Finished)
    assert ended.record.status == "crashed"
    assert "not JSON, or cut short" in str(ended.record.message)
    assert read_record(trials[0]) == ended.record
    (aside,) = Path("runs/s").glob("*/record.json.unreadable-*")
    assert aside.read_text() == "{"
