from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fake_python
import pytest

from sweeper.core.gpus import Gpu
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.record import Attempt, Record
from sweeper.core.settings import Measure, Settings
from sweeper.core.trial import Labels, Model, Trial
from sweeper.execution import placement
from sweeper.execution.execute import MIN_FREE_BYTES, NoSpaceError, execute, make_cluster_launcher
from sweeper.execution.placement import Placement, place_trials
from sweeper.execution.scheduler import Event, Finished, Started


@pytest.fixture
def trials(in_empty_folder: Path) -> list[Trial]:
    python = str(fake_python.write(in_empty_folder / "python"))
    model, labels = Model("timm", "vit_tiny_patch16_224"), Labels("vit_tiny", "fp32")
    return [Trial(model, size, labels, device="cpu", python=python) for size in (1, 2, 3)]


SETTINGS = Settings("s", device="cpu", measure=Measure(processes=1))


def start(trials: list[Trial], settings: Settings = SETTINGS) -> Generator[Event, None, None]:
    return execute(trials, settings, place_trials(settings, len(trials)))


def test_events_come_in_order_after_the_records_are_on_disk(trials: list[Trial]) -> None:
    heard, found = [], []
    for event in start(trials):
        if isinstance(event, Started):
            heard.append(f"start {event.trial.batch_size}")
        elif isinstance(event, Finished):
            (path,) = Path("runs/s").glob(f"*-{event.record.trial_id}/record.json")
            assert Record.loads(path.read_text()) == event.record, "it is on disk first"
            heard.append(f"end {event.record.trial.batch_size}")
            found.append(event.record)
    assert [(record.trial, record.status) for record in found] == [(trial, "ok") for trial in trials]
    assert heard == ["start 1", "end 1", "start 2", "end 2", "start 3", "end 3"]


def test_each_gpu_has_a_trial_at_a_time(trials: list[Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = tuple(Gpu(str(index), f"GPU-{index}", "A GPU") for index in range(2))
    monkeypatch.setattr(placement, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    body = (
        "open(f'here-{os.environ[\"CUDA_VISIBLE_DEVICES\"]}', 'w').close()\n"
        "while not (os.path.exists('here-0') and os.path.exists('here-1')): time.sleep(0.05)"
    )
    fake_python.write(Path(str(trials[0].python)), body)
    events = start(trials, replace(SETTINGS, device="cuda"))
    assert [event.record.status for event in events if isinstance(event, Finished)] == ["ok"] * 3


def test_full_disk_is_said_before_a_trial_and_keeps_what_there_is(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([MIN_FREE_BYTES, MIN_FREE_BYTES - 1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=next(free)))
    Path("runs/s").mkdir(parents=True)
    records = (event.record for event in start(trials) if isinstance(event, Finished))
    assert next(records).status == "ok"
    with pytest.raises(NoSpaceError, match="1024 MiB left"):
        next(records)
    assert len(list(Path("runs/s").glob("*/record.json"))) == 1


WRONG = """
check = Accuracy("float64", False, worst="loss", compiled_error=0.5, bound=0.1)
wrong = Process(options.index, options.draw, options.cold, code_fingerprint="abc", accuracy=check)
say(Outcome("accuracy_mismatch", "checking", "loss is off by 0.5", wrong)); sys.exit()
"""
ATTEMPT = Attempt("accuracy_mismatch", "checking", "loss is off by 0.5", "loss", ("abc-None",))


def read_record(trial: Trial) -> Record:
    (path,) = Path("runs/s").glob(f"*-{trial.id}/record.json")
    return Record.loads(path.read_text())


def run_as_job(trial: Trial) -> Finished:
    """Run a trial as a cluster's launcher does: this job runs beside the driver."""
    launcher = make_cluster_launcher("slurm", lambda _overrides: list(start([trial])), {trial.id: ()})
    (found,) = [event for event in launcher.run([trial], SETTINGS, Placement("slurm")) if isinstance(event, Finished)]
    return found


def run_here(trial: Trial) -> Finished:
    (found,) = [event for event in start([trial]) if isinstance(event, Finished)]
    return found


@pytest.mark.parametrize("run", [run_here, run_as_job], ids=["here", "as a job"])
def test_record_on_disk_keeps_the_attempt_that_it_replaces(
    trials: list[Trial], run: Callable[[Trial], Finished]
) -> None:
    python, trial = Path(str(trials[0].python)), trials[0]
    fake_python.write(python, WRONG)
    assert run(trial).record.status == "accuracy_mismatch"
    fake_python.write(python)
    assert run(trial).record.status == "ok"
    record = read_record(trial)
    assert (record.status, record.attempts) == ("ok", (ATTEMPT,))
    assert "failed_before" in record.flags


def test_lost_job_names_the_attempts_before_it_and_leaves_the_record_on_disk(trials: list[Trial]) -> None:
    fake_python.write(Path(str(trials[0].python)), WRONG)
    wrong = run_here(trials[0]).record
    (path,) = Path("runs/s").glob("*/record.json")
    os.utime(path, (0, 0))
    launcher = make_cluster_launcher("slurm", lambda _overrides: None, {trials[0].id: ()})
    *_, lost = launcher.run([trials[0]], SETTINGS, Placement("slurm"))
    assert isinstance(lost, Finished)
    assert (lost.record.status, lost.record.attempts, lost.record.flags) == ("crashed", (ATTEMPT,), ("failed_before",))
    assert read_record(trials[0]) == wrong


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
