"""How long a step of a whole loop takes, by a made-up clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.core.record import LoopRun, ScriptRun
from sweeper.worker.scripts import loop_time
from sweeper.worker.scripts.ranks import ALONE, Ranks
from sweeper.worker.scripts.watch.loop import Counts, ScriptOverError

STEP_S, COMPILE_S, EVENT_S = 0.25, 60.0, 5.0


class MadeUpLoop:
    """A loop of which each step takes STEP_S, and COMPILE_S more where something is compiled after
    it.

    Before a step it evaluates, or its loader begins anew, where the number of steps so far says so;
    it takes EVENT_S.
    """

    def __init__(
        self,
        compiles_after: set[int],
        evaluates: Callable[[int], bool] = lambda _steps: False,
        begins_anew: Callable[[int], bool] = lambda _steps: False,
    ) -> None:
        self.num_steps, self.clock_s, self.programs = 0, 0.0, set[int]()
        self.ranks, self.step_s, self.device = ALONE, STEP_S, torch.device("cpu")
        self.evaluations = self.saves = self.epochs = 0
        self._evaluates, self._begins_anew = evaluates, begins_anew
        self.loader = SimpleNamespace(seen={"no workers"})
        self._compiles_after = compiles_after

    def count(self) -> Counts:
        return Counts(
            steps=self.num_steps, batches=self.num_steps, loader_s=0.0, others=0, saved=self.saves,
            skipped=0, evaluations=self.evaluations, epochs=self.epochs,
            programs=len(self.programs), seconds=self.clock_s,
        )  # fmt: skip

    def step(self) -> None:
        evaluates, begins_anew = self._evaluates(self.num_steps), self._begins_anew(self.num_steps)
        self.evaluations += evaluates
        self.epochs += begins_anew
        self.num_steps += 1
        self.clock_s += self.step_s + EVENT_S * (evaluates + begins_anew)
        if self.num_steps in self._compiles_after:
            self.clock_s += COMPILE_S
            self.programs.add(self.num_steps)

    def time(self, ends_after: int = 1000, known: ScriptRun | None = None) -> LoopRun:
        setup: Any = SimpleNamespace(
            loop=self, ranks=self.ranks, measure=SimpleNamespace(rounds_s=None),
            device=self.device,
            bench=SimpleNamespace(synchronize=lambda: None, clock=lambda: self.clock_s),
            switch=SimpleNamespace(forms=[]),
        )  # fmt: skip
        lead = loop_time.time_loop(setup, known or ScriptRun())
        try:
            next(lead)
            while self.num_steps < ends_after:
                self.step()
                next(lead)
            lead.throw(ScriptOverError("the script ended"))
        except StopIteration as end:
            return end.value
        raise AssertionError("there is no end")


class LinkedRanks(Ranks):
    """Two ranks in two threads."""

    size = 2

    def __init__(self, number: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.number, self._values, self._barrier = number, values, barrier

    def share(self, what: str, value: Any) -> list[Any]:
        self._values[self.number] = what, value
        self._barrier.wait(60)
        places, found = zip(*self._values, strict=True)
        self._barrier.wait(60)
        assert set(places) == {what}
        return list(found)


def test_ranks_end_at_the_same_step_and_a_loop_takes_as_long_as_in_the_slowest() -> None:
    """Rank 0 evaluates, and decides; it is faster."""
    values, barrier = [None, None], threading.Barrier(2)
    loops = [MadeUpLoop(set(), evaluates=lambda steps: steps % 20 == 19), MadeUpLoop(set())]
    loops[1].step_s = 2.0
    for number, loop in enumerate(loops):
        loop.ranks = LinkedRanks(number, values, barrier)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda loop: loop.time(known=ScriptRun(interval=20)), loops))
    assert loops[0].num_steps == loops[1].num_steps < 100
    assert [run.step_s for run in runs] == [2.0, 2.0]
    assert (runs[0].steps, runs[0].evaluations) == (20, 1)


class MadeUpEvent:
    """An event of a device that takes three times as long for a step as its host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: MadeUpLoop) -> None:
        self._ms = 3e3 * stream.clock_s

    def synchronize(self) -> None:
        """The device has come here."""

    def elapsed_time(self, end: MadeUpEvent) -> float:
        return end._ms - self._ms


def test_a_rank_takes_as_long_as_its_device_of_which_the_host_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, barrier = [None, None], threading.Barrier(2)
    loops = [MadeUpLoop(set()), MadeUpLoop(set())]
    for number, loop in enumerate(loops):
        loop.ranks, loop.device = LinkedRanks(number, values, barrier), torch.device("cuda", number)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: loops[device.index])
    monkeypatch.setattr(torch.cuda, "Event", MadeUpEvent)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(MadeUpLoop.time, loops))
    assert [run.step_s for run in runs] == [3 * STEP_S, 3 * STEP_S]


def test_what_compiles_once_is_no_part_of_a_step() -> None:
    """The first evaluation compiles the module once more."""
    run = MadeUpLoop({5}).time()
    assert (run.step_s, run.recompiles) == (pytest.approx(STEP_S), 0)
    assert run.steps * STEP_S == pytest.approx(loop_time.LOOP_S)


def test_a_loop_that_compiles_again_and_again_is_timed_with_it() -> None:
    run = MadeUpLoop(set(range(1, 1000))).time()
    assert (run.step_s, run.recompiles) == (pytest.approx(STEP_S + COMPILE_S), run.steps)


def test_a_script_that_ends_soon_after_a_compilation_keeps_what_was_timed_before() -> None:
    run = MadeUpLoop({30}).time(ends_after=32)
    assert (run.steps, run.recompiles) == (32, 1)
    assert run.step_s == pytest.approx(STEP_S + COMPILE_S / 32)


def test_a_script_that_ends_at_once_has_no_time() -> None:
    with pytest.raises(ScriptOverError):
        MadeUpLoop(set()).time(ends_after=loop_time.MIN_STEPS - 1)


def every(period: int, first: int = 0) -> Callable[[int], bool]:
    return lambda steps: steps > first and (steps - first) % period == 0


@pytest.mark.parametrize("period", [12, 46, 60])
def test_an_eager_loop_is_timed_from_one_evaluation_to_another(period: int) -> None:
    run = MadeUpLoop(set(), every(period)).time(known=ScriptRun(interval=period))
    assert run.step_s == pytest.approx(STEP_S + EVENT_S / period)
    assert (run.steps, run.left_out) == (period * run.evaluations, False)
    assert run.steps * run.step_s >= loop_time.LOOP_S


@pytest.mark.parametrize("begins_at", [0, 5, 11, 30])
def test_the_compiled_loop_has_as_many_evaluations_wherever_it_begins(begins_at: int) -> None:
    """A third of the time would hold another share of them; what compiles is left out, as
    before.
    """
    made = MadeUpLoop({begins_at + 3}, every(12))
    made.num_steps = begins_at
    run = made.time(known=make_known(LoopRun(24, 16 / 24, None, 1.0, evaluations=2)))
    assert (run.steps % 24, run.evaluations, run.recompiles) == (0, run.steps / 12, 0)
    assert run.step_s == pytest.approx(STEP_S + EVENT_S / 12)


@pytest.mark.parametrize(("first", "steps"), [(10, 120), (38, 120)])
def test_an_evaluation_that_comes_too_rarely_is_left_out(first: int, steps: int) -> None:
    run = MadeUpLoop(set(), lambda steps: steps == first).time()
    assert (run.step_s, run.evaluations, run.left_out) == (pytest.approx(STEP_S), 0, True)
    assert run.steps == steps  # for as long as the next one was waited for


def test_what_eager_has_left_out_is_not_in_the_compiled_loop() -> None:
    known = make_known(LoopRun(40, 0.25, None, 1.0))
    run = MadeUpLoop(set(), lambda steps: steps == 30).time(known=known)
    assert (run.step_s, run.steps, run.evaluations, run.left_out) == (
        pytest.approx(STEP_S),
        40,
        0,
        True,
    )


def test_epochs_count_where_there_is_no_evaluation() -> None:
    run = MadeUpLoop(set(), begins_anew=every(16)).time()
    assert (run.step_s, run.steps) == (pytest.approx(STEP_S + EVENT_S / 16), 16 * run.epochs)
    both = MadeUpLoop(set(), every(30), every(10)).time()
    assert (both.epochs, both.steps) == (3 * both.evaluations, 30 * both.evaluations)


def test_a_script_that_ends_between_two_evaluations_keeps_the_whole_periods() -> None:
    run = MadeUpLoop(set(), every(12)).time(ends_after=30)
    assert (run.steps, run.evaluations) == (12, 1)


def make_known(run: LoopRun) -> ScriptRun:
    return ScriptRun(loop_eager=run)


@pytest.mark.parametrize("begins_at", [12, 19, 32, 41])
def test_kinds_of_events_are_counted_apart(begins_at: int) -> None:
    """Epochs of ten steps and one evaluation: neither arm has it, and both have as many epochs."""
    eager = MadeUpLoop(set(), lambda steps: steps == 45, every(10))
    run = eager.time()
    compiled = MadeUpLoop(set(), lambda steps: steps == 45, every(10))
    compiled.num_steps = begins_at
    other = compiled.time(known=make_known(run))
    assert (run.evaluations, other.evaluations) == (0, 0)
    assert other.step_s == pytest.approx(run.step_s, rel=0.05)


def test_a_compiled_script_that_ends_early_leaves_out_what_eager_has_not() -> None:
    run = MadeUpLoop(set(), lambda steps: steps == 25).time(ends_after=30)
    assert (run.steps, run.evaluations, run.left_out) == (25, 0, True)
    made = MadeUpLoop(set(), lambda steps: steps == 25)
    made.num_steps = 10
    other = made.time(ends_after=30, known=make_known(run))
    assert (other.step_s, other.evaluations, other.left_out) == (pytest.approx(STEP_S), 0, True)


def test_a_compiled_loop_that_is_far_slower_does_not_run_on() -> None:
    run = MadeUpLoop(set(range(1000))).time(known=make_known(LoopRun(1000, 0.02, None, 1.0)))
    assert run.steps == loop_time.MIN_STEPS


def test_long_steps_are_timed_eight_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.STEP_S", 12.0)
    run = MadeUpLoop(set(), lambda steps: steps == 2).time()
    assert run.steps >= loop_time.MIN_STEPS
