"""The life of a sweep in the driver, with workers that measure nothing."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import fake_python
import pytest
from records import make_record, make_trial, write_sweep

from sweeper.analysis.metrics import derive
from sweeper.core.record import Inspection, Record
from sweeper.core.settings import Measure, Settings, Tracking
from sweeper.core.trial import Trial
from sweeper.execution.execute import Launcher
from sweeper.execution.scheduler import Event, Finished, Started
from sweeper.sweep.driver import INTERRUPTED, OK, run_sweep

INSPECTS = """
if options.inspect:
    os.makedirs(options.inspect)
    open(options.inspect + "/summary.md", "w").close()
"""
SETTINGS = Settings("night", device="cpu", measure=Measure(processes=1), tracking=Tracking(enabled=False))
INSPECTING = replace(SETTINGS, inspect=True)


@pytest.fixture
def trial(in_empty_folder: Path) -> Trial:
    python = str(fake_python.write(in_empty_folder / "python", INSPECTS))
    return make_trial("vit_b_16", "fp32", device="cpu", python=python)


def record() -> Record:
    (path,) = Path("runs/night").glob("*/record.json")
    return Record.loads(path.read_text())


def test_inspection_is_of_trials_that_run(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished trial is left alone by a resume, and inspected when it is run again."""
    assert run_sweep([trial], SETTINGS) == OK
    assert run_sweep([trial], INSPECTING) == OK
    assert record().inspection is None
    capsys.readouterr()
    assert run_sweep([trial], replace(INSPECTING, retry="all")) == OK
    assert record().inspection == Inspection("inspect")
    summary = f"runs/night/{trial.label}-{trial.id}/inspect/summary.md"
    assert Path(summary).exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 process each, and one that shows what the compiler does")
    assert f"[1/1] {trial.label}: what the compiler did: {summary}" in lines
    assert f"note: what the compiler did: {summary}" in lines


def test_sweep_that_ends_before_its_last_trial_is_interrupted(trial: Trial) -> None:
    """As where the first was interrupted in its inspection and is ok."""
    other = replace(trial, batch_size=1)

    def first_alone(trials, _settings, _placement) -> Generator[Event, None, None]:
        yield Started(trials[0])
        yield Finished(make_record(trial=trials[0]), derive(make_record(trial=trials[0])))

    assert run_sweep([trial, other], SETTINGS, Launcher(None, first_alone)) == INTERRUPTED


def test_a_sweep_ends_with_how_to_run_again_what_failed(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(trials, _settings, _placement) -> Generator[Event, None, None]:
        for one in trials:
            yield Started(one)
            write_sweep(Path("runs"), [failed := make_record(trial=one, status="crashed")], "night")
            yield Finished(failed, derive(failed))

    run_sweep([trial], SETTINGS, Launcher(None, fails))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 not ok that may do better: the same command with sweep=night runs them again"
