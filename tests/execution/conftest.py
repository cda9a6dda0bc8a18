from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest
from stand_in_worker import PRELUDE

from sweeper.core.record import Record
from sweeper.core.settings import Measure, Settings
from sweeper.core.system.gpus import Device
from sweeper.core.trial import Trial
from sweeper.execution import processes, trial_runner
from sweeper.execution.draft import Draft
from sweeper.execution.placement import DeviceSlot
from sweeper.execution.scheduler import OnPhase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial):
    def run(
        body: str,
        stop: threading.Event | None = None,
        cores: tuple[int, ...] | None = None,
        slot: DeviceSlot | None = None,
        inspect: bool = False,
        on_phase: OnPhase = lambda _began: None,
        of: Trial = trial,
        features: Collection[str] = (),
        default: Draft | None = None,
        **measure: object,
    ) -> Record:
        script = in_empty_folder / "worker.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(
            processes, "make_command", lambda _python, _module: [sys.executable, str(script)]
        )
        settings = Settings(
            "s", measure=Measure(**{"processes": 1, "timeout_s": 30.0, **measure}), inspect=inspect
        )  # type: ignore[arg-type]
        slot = slot or DeviceSlot(Device("cpu"), cores)
        stop = stop or threading.Event()
        of_trial = trial_runner.TrialRun(of, settings, slot, on_phase, stop, features, default)
        steps = trial_runner.run_trial(of_trial)
        with suppress(StopIteration):
            next(steps)
            while True:
                steps.send(True)
        return of_trial.record

    return run
