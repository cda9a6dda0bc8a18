"""The clocks of a script's steps, on a machine that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.worker.measurement import device_time, host_time
from sweeper.worker.measurement.device_time import Pass
from sweeper.worker.scripts import profiling
from sweeper.worker.scripts.loop import Lead, Loop
from sweeper.worker.scripts.profiling import profile


class Notes:
    """What a process would note, and the medians of its rounds."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.process = SimpleNamespace(step_s=lambda _arm: 0.02, read_arm=self._read)

    def _read(self, name: str, arm: str) -> float | None:
        return getattr(self.found.get(name), arm, None)

    def add(self, **found: Any) -> None:
        self.found |= found


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reading on a GPU that is busy for 10 ms of each eager step, and for 5 ms of each compiled one."""
    arm = ["eager"]

    @contextmanager
    def recording() -> Iterator[Any]:
        yield lambda: arm[0]

    def read_pass(arm: str) -> Pass:
        return Pass({"eager": 0.05, "compiled": 0.025}[arm], {"eager": 50, "compiled": 20}[arm])

    @contextmanager
    def noting_waits() -> Iterator[list[str]]:
        yield ["train.py:29"] if arm[0] == "eager" else []

    monkeypatch.setattr(device_time, "recording", recording)
    monkeypatch.setattr(device_time, "read_pass", read_pass)
    monkeypatch.setattr(device_time, "calibrate_gap_s", lambda: 1e-6)
    monkeypatch.setattr(host_time, "noting_waits", noting_waits)
    arms = SimpleNamespace(switch=lambda name: arm.__setitem__(0, name))
    made = SimpleNamespace(notes=Notes(), device=torch.device("cuda"), arms=arms)
    made.synchronize, made.without_collector, made.loop = lambda: None, nullcontext, SimpleNamespace(thrown=None)
    return made


def test_both_clocks_are_read_and_a_wait_is_named(reading: Any) -> None:
    steps = sum(1 for _ in profile(reading, 1))
    found = reading.notes.found
    assert steps > 20
    assert (found["device_time_s"].eager, found["device_time_s"].compiled) == pytest.approx((0.01, 0.005))
    assert (found["device_kernels"].eager, found["device_kernels"].compiled) == (10, 4)
    assert found["host_time_missing"] == "eager: the step waits for the device by itself (train.py:29)"
    assert found["host_step_s"].eager is None
    assert found["host_step_s"].compiled >= 0
    assert "device_time_missing" not in found or found["device_time_missing"] is None


def test_what_the_profiler_raises_is_a_reason(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RuntimeError("CUPTI is busy")

    monkeypatch.setattr(profiling.device_time, "recording", fail)
    list(profile(reading, 1))
    assert reading.notes.found["device_time_missing"] == "RuntimeError: CUPTI is busy"


def test_what_the_script_raises_ends_it(reading: Any) -> None:
    heard: list[Exception | None] = []

    def lead(loop: Loop) -> Lead:
        reading.loop = loop
        yield from profile(reading, 1)
        yield

    loop, error = Loop(lead, heard.append), ValueError("no batch left")
    loop._go_on()
    loop.finish(error)
    assert heard == [error]
    assert "device_time_missing" not in reading.notes.found


def test_a_lead_that_wants_more_steps_of_a_script_that_has_failed_hears_of_it() -> None:
    heard: list[Exception | None] = []

    def lead(_loop: Loop) -> Lead:
        while True:
            try:
                yield
            except ValueError:
                continue

    loop, error = Loop(lead, heard.append), ValueError("no batch left")
    loop._go_on()
    loop.finish(error)
    assert heard == [error]
