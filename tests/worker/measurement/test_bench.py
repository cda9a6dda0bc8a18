from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from sweeper.core.record import OTHERS_BUSY
from sweeper.core.settings import Measure
from sweeper.worker.failures import MismatchError
from sweeper.worker.measurement.bench import (
    STEPS_BEFORE_BLOCK,
    Arm,
    ModelBench,
    Steps,
    Timed,
    complete,
    measure_rounds,
)
from sweeper.worker.models.batches import Batch
from sweeper.worker.monitoring import round_monitor
from sweeper.worker.monitoring.host_monitor import HostMonitor
from sweeper.worker.monitoring.round_monitor import RoundMonitor

ARM = Arm("eager", lambda _batch: None, eager=True)


class Clocked(ModelBench):
    """Blocks last as long as a formula of their steps says."""

    def __init__(self, device: str, seconds: Callable[[int], float]) -> None:
        super().__init__((), torch.device(device))  # type: ignore[arg-type]
        self._seconds = seconds

    def block_s(self, _arm: Arm, steps: int) -> Steps[float]:
        yield from ()
        return self._seconds(steps)


@pytest.mark.parametrize(
    ("device", "estimate_s", "seconds", "steps"),
    [
        ("cpu", 0.001, lambda steps: 0.001 * steps, 100),
        ("cpu", 0.1, lambda steps: 0.001 * steps, 100),
        ("cpu", 3.0, lambda steps: 3.0 * steps, 2),
        ("cuda", 0.01, lambda steps: 0.01 * steps, 20),
        ("cuda", 1.0, lambda steps: 0.01 * steps, 20),
        ("cuda", 0.01, lambda steps: 0.04 + 0.01 * steps, 40),
        ("cuda", 0.01, lambda steps: 0.5 + 0.001 * steps, 40),
        ("cuda", 0.01, lambda steps: 9.0 + 0.01 * steps, 20),
        ("cuda", 3.0, lambda steps: 3.0 * steps, 2),
    ],
    ids=[
        "as estimated", "estimated on a busy machine", "long steps", "on a GPU", "busy, on a GPU",
        "a cost of each block, soon small", "a cost of each block, never small", "long blocks",
        "long steps on a GPU",
    ],
)  # fmt: skip
def test_steps_of_a_block(
    device: str, estimate_s: float, seconds: Callable[[int], float], steps: int
) -> None:
    """At least 2 steps, and 0.1 s on a CPU or 0.2 s on a GPU, doubled there once at most, below a
    second.
    """
    assert complete(Clocked(device, seconds).steps_per_block(ARM, estimate_s, Measure())) == steps


def test_a_block_that_was_held_up_is_not_taken_for_long() -> None:
    held_up = iter([0.5])
    bench = Clocked("cpu", lambda steps: next(held_up, 0.001 * steps))
    assert complete(bench.steps_per_block(ARM, 0.1, Measure())) == 100


@pytest.mark.parametrize("eager_steps", [2, 3])
def test_first_steps_begin_with_the_first_batch(eager_steps: int) -> None:
    first, second = Batch(args=("first",)), Batch(args=("second",))
    seen: list[Batch] = []
    bench = ModelBench((first, second), torch.device("cpu"))
    bench.run(ARM, eager_steps)
    complete(bench.first_steps_s(Arm("compiled", seen.append, eager=True)))
    assert seen[:3] == [first, second, first]


@pytest.mark.parametrize(
    ("growth", "steps"), [(0.0, 5 * 3), (1.0, 15 * 3)], ids=["steady", "never steady"]
)
def test_first_steps_end_when_going_through_all_sizes_takes_as_long_as_before(
    growth: float, steps: int
) -> None:
    """Three sizes, of which one takes ten times as long."""
    now_s = [0.0]

    def step(batch: Batch) -> None:
        now_s[0] += batch.args[0] + growth * now_s[0]

    batches = tuple(Batch(args=(took_s,)) for took_s in (1.0, 10.0, 1.0))
    bench = ModelBench(batches, torch.device("cpu"), lambda: now_s[0], num_sizes=3)
    assert len(complete(bench.first_steps_s(Arm("compiled", step, eager=True)))) == steps


@pytest.mark.parametrize("clock", ["block", "step"])
def test_collector_is_off_in_the_blocks_of_a_round_and_on_again_after_them(clock: str) -> None:
    seen: list[tuple[str, bool]] = []
    eager, compiled = (
        Arm(name, lambda _batch, name=name: seen.append((name, gc.isenabled())), eager=True)
        for name in ("eager", "compiled")
    )
    bench, monitor = (
        ModelBench((Batch(), Batch()), torch.device("cpu")),
        RoundMonitor(torch.device("cpu")),
    )
    measure, between = Measure(rounds=2, clock=clock), list[bool]()
    complete(
        measure_rounds(
            bench, (eager, compiled), 2, measure, monitor, lambda _: between.append(gc.isenabled())
        )
    )
    assert between == [True, True]
    steps = 2 + 2  # untimed ones and those of the block
    arms = ["eager"] * steps + ["compiled"] * 2 * steps + ["eager"] * steps
    assert seen == [(arm, False) for arm in arms]


def test_round_in_which_something_compiles_is_void() -> None:
    bench, monitor = (
        ModelBench((Batch(), Batch()), torch.device("cpu")),
        RoundMonitor(torch.device("cpu")),
    )
    programs: set[str] = set()
    monitor.read_programs = lambda: frozenset(programs)
    steps = iter(("one", "one", "one"))
    compiled = Arm("compiled", lambda _batch: programs.add(next(steps, "one")), eager=True)
    rounds = list[Timed]()
    complete(measure_rounds(bench, (ARM, compiled), 2, Measure(rounds=1), monitor, rounds.append))
    assert [item.round.void for item in rounds] == ["recompiled", None]


def test_collector_is_on_after_a_step_that_fails() -> None:
    """An error ends the worker's round, but not the worker."""

    def fail(_batch: Batch) -> None:
        raise RuntimeError("something else")

    bench, monitor = (
        ModelBench((Batch(), Batch()), torch.device("cpu")),
        RoundMonitor(torch.device("cpu")),
    )
    rounds = list[Timed]()
    failing = Arm("compiled", fail, eager=True)
    with pytest.raises(RuntimeError, match="something else"):
        complete(measure_rounds(bench, (ARM, failing), 2, Measure(), monitor, rounds.append))
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("step_s", "limit_s", "rounds"),
    [(0.1, 3.0, 4), (0.1, 1.7, 2), (0.1, 0.1, 2), (0.25, 3.0, 2), (0.1, 60.0, 10)],
)
def test_rounds_end_within_half_a_pair_of_their_limit(
    step_s: float, limit_s: float, rounds: int
) -> None:
    """A round has two blocks of a step, with two untimed steps before each."""
    seconds = [0.0]

    def run(_batch: Batch) -> None:
        seconds[0] += step_s

    arms = (Arm("eager", run, True), Arm("compiled", run, True))
    bench = ModelBench((Batch(),), torch.device("cpu"), clock=lambda: seconds[0])
    monitor, timed = RoundMonitor(torch.device("cpu")), list[Timed]()
    measure = Measure(rounds_s=limit_s)
    complete(measure_rounds(bench, arms, 1, measure, monitor, timed.append))
    assert len(timed) == rounds


def run_disturbed(
    monkeypatch: pytest.MonkeyPatch, busy: Iterator[float], again: int, rounds_s: float
) -> tuple[RoundMonitor, list[Timed]]:
    """Rounds of 0.6 s on a CPU of which others keep these shares busy."""
    seconds = [0.0]
    monkeypatch.setattr(round_monitor, "MAX_BUSY_HOST", 0.1)
    monkeypatch.setattr(HostMonitor, "share_busy_by_others", lambda _: next(busy))

    def run(_batch: Batch) -> None:
        seconds[0] += 0.1

    arms = (Arm("eager", run, True), Arm("compiled", run, True))
    bench = ModelBench((Batch(),), torch.device("cpu"), clock=lambda: seconds[0])
    monitor, timed = RoundMonitor(torch.device("cpu")), list[Timed]()
    monitor.rounds_again = again
    complete(measure_rounds(bench, arms, 1, Measure(rounds_s=rounds_s), monitor, timed.append))
    return monitor, timed


def test_rounds_that_others_disturb_are_taken_again_so_many_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take part neither in the order nor in the time of rounds."""
    busy = (0.0, 0.5, 0.3, 0.05, 0.6, 0.2, 0.4, 0.0)
    monitor, timed = run_disturbed(monkeypatch, iter(busy), again=3, rounds_s=2.4)
    again = [item.round.void == OTHERS_BUSY for item in timed]
    assert again == [False, True, True, False, True, False, False]
    counted = [item.round.order for item in timed if item.round.void is None]
    assert counted in (["AB", "BA"] * 2, ["BA", "AB"] * 2)
    assert monitor.share_busy_by_others == pytest.approx((0.0 + 0.05 + 0.2 + 0.4) / 4)


def test_rounds_are_taken_again_for_as_long_as_they_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of them take 1.2 s."""
    _, timed = run_disturbed(monkeypatch, itertools.repeat(0.5), again=10, rounds_s=1.1)
    assert [item.round.void for item in timed] == [OTHERS_BUSY, OTHERS_BUSY, None, None]


def test_others_on_the_host_void_no_round_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_monitor, "MAX_BUSY_HOST", 0.1)
    monkeypatch.setattr(HostMonitor, "share_busy_by_others", lambda _: 0.5)
    monitor = RoundMonitor(torch.device("cuda"))
    monitor.rounds_again = 3
    monitor.start_round()
    assert (monitor.explain_void(), monitor.share_busy_by_others) == (None, 0.5)


def test_which_order_begins_is_drawn_for_each_process() -> None:
    first = set()
    for process in range(20):
        bench, rounds = ModelBench((Batch(),), torch.device("cpu")), list[Timed]()
        monitor, arms = RoundMonitor(torch.device("cpu")), (ARM, replace(ARM, name="compiled"))
        measure = Measure(rounds=2)
        complete(measure_rounds(bench, arms, 1, measure, monitor, rounds.append, process))
        orders = [item.round.order for item in rounds]
        assert sorted(orders) == ["AB", "BA"]
        first.add(orders[0])
    assert first == {"AB", "BA"}


@pytest.mark.parametrize("clock", ["block", "step"])
@pytest.mark.parametrize(
    ("eager", "compiled", "right"),
    [
        (torch.ones(3), torch.ones(3), True),
        (torch.ones(3), torch.ones(3) * 1.4, True),
        (torch.ones(3), torch.zeros(3), False),
        (torch.ones(3), torch.ones(3) * 2, False),
        ({"a": torch.ones(2), "b": [torch.ones(5)]}, {"a": torch.zeros(2), "b": []}, False),
        (torch.tensor(-2.0), torch.tensor(-2.1), True),
        (torch.tensor(-2.0), torch.tensor(2.0), False),
        (torch.tensor(float("nan")), torch.tensor(1.0), True),  # judged elsewhere
        (torch.tensor(1.0), torch.tensor(float("nan")), False),
        (torch.ones(3, dtype=torch.int), torch.zeros(3, dtype=torch.int), True),
        (None, None, True),
    ],
    ids=str,
)
def test_results_of_timed_steps_are_alike(
    clock: str, eager: object, compiled: object, right: bool
) -> None:
    bench, monitor = ModelBench((Batch(),), torch.device("cpu")), RoundMonitor(torch.device("cpu"))
    arms = (Arm("eager", lambda _: eager, True), Arm("compiled", lambda _: compiled, True))
    measure = Measure(rounds=2, clock=clock)
    steps = measure_rounds(bench, arms, 2, measure, monitor, lambda _: None)
    with nullcontext() if right else pytest.raises(MismatchError, match="while they were timed"):
        complete(steps)


@pytest.mark.parametrize(
    ("first_loss", "eager", "compiled", "right"),
    [
        pytest.param(
            None,
            [1.93e-5, 3.97e-6, 7.66e-6, 8.56e-8],
            [8.03e-5, 5.2e-5, 1.84e-5, 6.83e-6],
            True,
            id="it jumps near its minimum, as Adam left a small network",
        ),
        pytest.param(6.9, [0.14, 0.11], [1.1, 0.06], True, id="it falls fast"),
        pytest.param(6.9, [0.14, 0.11], [1.1, 1.1], False, id="the compiled one does not"),
        pytest.param(6.9, [0.14, 0.11], [math.nan, 0.06], False, id="one block is NaN"),
        pytest.param(6.9, [0.14, 0.11, 0.1], [1.1, 1.0, 0.1], False, id="most are far"),
        pytest.param(None, [1.0, 1.0], [1.0, 3.5], False, id="one of two, in inference"),
    ],
)
def test_losses_that_differ_from_block_to_block_are_alike(
    first_loss: float | None, eager: list[float], compiled: list[float], right: bool
) -> None:
    losses = iter_blocks(eager), iter_blocks(compiled)
    arms = (
        Arm("eager", lambda _: next(losses[0]), True),
        Arm("compiled", lambda _: next(losses[1]), True),
    )
    bench, monitor = ModelBench((Batch(),), torch.device("cpu")), RoundMonitor(torch.device("cpu"))
    bench.first_loss = first_loss
    measure = Measure(rounds=len(eager))
    steps = measure_rounds(bench, arms, 2, measure, monitor, lambda _: None)
    with nullcontext() if right else pytest.raises(MismatchError, match="while they were timed"):
        complete(steps)


@pytest.mark.parametrize(
    ("first_loss", "eager", "compiled", "right"),
    [
        pytest.param(0.3, 2.0e-9, 1.1e-8, True, id="noise near the minimum"),
        pytest.param(-0.3, -2.0e-9, 1.1e-8, True, id="a negative loss"),
        pytest.param(6.2, 0.0066, 0.0154, True, id="dropout, on memorised batches"),
        pytest.param(0.3, 2.0e-9, 0.0, True, id="zeros near the minimum"),
        pytest.param(None, 2.0e-9, 1.1e-8, False, id="outputs of inference"),
        pytest.param(2.0e-9, 2.0e-9, 1.1e-8, False, id="a loss that was always small"),
        pytest.param(0.3, 2.0e-9, 0.3, False, id="the first loss again"),
        pytest.param(0.3, 2.0e-9, float("nan"), False, id="NaN near the minimum"),
        pytest.param(0.3, 3.0e-3, 0.0, False, id="zeros before the minimum"),
    ],
)
def test_noise_is_a_small_share_of_the_first_loss(
    first_loss: float | None, eager: float, compiled: float, right: bool
) -> None:
    bench, monitor = ModelBench((Batch(),), torch.device("cpu")), RoundMonitor(torch.device("cpu"))
    bench.first_loss = first_loss
    arms = (
        Arm("eager", lambda _: torch.tensor(eager), True),
        Arm("compiled", lambda _: torch.tensor(compiled), True),
    )
    steps = measure_rounds(bench, arms, 1, Measure(rounds=2), monitor, lambda _: None)
    with nullcontext() if right else pytest.raises(MismatchError, match="while they were timed"):
        complete(steps)


def iter_blocks(losses: list[float]) -> Iterator[torch.Tensor]:
    """The losses of the steps of blocks of two, with those before each."""
    for loss in losses:
        for _ in range(STEPS_BEFORE_BLOCK + 2):
            yield torch.tensor(loss)
