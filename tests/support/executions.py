"""Trials that `execute` runs, with a worker that answers at once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import fake_python
import pytest

from sweeper.core.record import Record
from sweeper.core.settings import Measure, Settings
from sweeper.core.trial import Labels, Model, Trial
from sweeper.execution.execute import execute
from sweeper.execution.placement import place_trials
from sweeper.execution.scheduler import Event, Finished

SETTINGS = Settings("s", device="cpu", measure=Measure(processes=1))


@pytest.fixture
def trials(in_empty_folder: Path) -> list[Trial]:
    python = str(fake_python.write(in_empty_folder / "python"))
    model, labels = Model("timm", "vit_tiny_patch16_224"), Labels("vit_tiny", "fp32")
    return [Trial(model, size, labels, device="cpu", python=python) for size in (1, 2, 3)]


def start(trials: list[Trial], settings: Settings = SETTINGS) -> Generator[Event, None, None]:
    return execute(trials, settings, place_trials(settings, len(trials)))


def run_here(trial: Trial) -> Finished:
    (found,) = [event for event in start([trial]) if isinstance(event, Finished)]
    return found


def read_record(trial: Trial) -> Record:
    (path,) = Path("runs/s").glob(f"*-{trial.id}/record.json")
    return Record.loads(path.read_text())
