"""How long a step of a whole loop takes, by a made-up clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.core.record import LoopRun
from sweeper.worker.scripts import leads
from sweeper.worker.scripts.loop import Counts, ScriptOverError

STEP_S, COMPILE_S = 0.25, 60.0


class MadeUpLoop:
    """A loop of which each step takes STEP_S, and COMPILE_S more where something is compiled after it."""

    def __init__(self, compiles_after: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_steps, self.clock_s, self.programs = 0, 0.0, set[int]()
        self.loader = SimpleNamespace(seen={"no workers"})
        self._compiles_after = compiles_after
        monkeypatch.setattr(leads, "time", SimpleNamespace(perf_counter=lambda: self.clock_s))

    def count(self) -> Counts:
        return Counts(self.num_steps, self.num_steps, 0.0, 0, 0, 0)

    def step(self) -> None:
        self.num_steps += 1
        self.clock_s += STEP_S
        if self.num_steps in self._compiles_after:
            self.clock_s += COMPILE_S
            self.programs.add(self.num_steps)

    def time(self, ends_after: int = 1000) -> LoopRun:
        setup: Any = SimpleNamespace(
            loop=self, loops={}, measure=SimpleNamespace(rounds_s=None),
            bench=SimpleNamespace(synchronize=lambda: None), arms=SimpleNamespace(counters=self),
        )  # fmt: skip
        lead = leads._time_loop(setup, "compiled")
        try:
            next(lead)
            while self.num_steps < ends_after:
                self.step()
                next(lead)
            lead.throw(ScriptOverError("the script ended"))
        except StopIteration:
            pass
        return setup.loops["compiled"]


def test_what_compiles_once_is_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evaluation compiles the module once more."""
    run = MadeUpLoop({5}, monkeypatch).time()
    assert (run.step_s, run.recompiles) == (pytest.approx(STEP_S), 0)
    assert run.steps * STEP_S == pytest.approx(leads.LOOP_S)


def test_a_loop_that_compiles_again_and_again_is_timed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = MadeUpLoop(set(range(1, 1000)), monkeypatch).time()
    assert (run.step_s, run.recompiles) == (pytest.approx(STEP_S + COMPILE_S), run.steps)


def test_a_script_that_ends_soon_after_a_compilation_keeps_what_was_timed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = MadeUpLoop({30}, monkeypatch).time(ends_after=32)
    assert (run.steps, run.recompiles) == (32, 1)
    assert run.step_s == pytest.approx(STEP_S + COMPILE_S / 32)


def test_a_script_that_ends_at_once_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScriptOverError):
        MadeUpLoop(set(), monkeypatch).time(ends_after=leads.MIN_LOOP_STEPS - 1)
