"""What is measured where a script's loop runs the steps, on a machine that is made up: each
resumption is a step.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops import begin_loop
from records import make_process

from sweeper.core.record import PerArm, Process
from sweeper.core.settings import Measure
from sweeper.worker.failures import UnsteadyError
from sweeper.worker.lease import Lease
from sweeper.worker.measurement import bench as bench_module
from sweeper.worker.measurement import device_time, host_time, memory
from sweeper.worker.measurement.bench import Arm, Steps
from sweeper.worker.measurement.device_time import Work
from sweeper.worker.measurement.energy import measure_energy
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts.ranks import ALONE
from sweeper.worker.scripts.subject import LoopBench, LoopMonitor
from sweeper.worker.scripts.watch.interruptions import Interruptions
from sweeper.worker.scripts.watch.loop import Counts, Loop, ScriptOverError
from sweeper.worker.subject import Subject

EAGER, COMPILED = (Arm(name, lambda _batch: None, eager=True) for name in ("eager", "compiled"))


class Watched:
    """What is read of a loop."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.counts = Counts(0, 0, 0.0, 0, 0, 0)
        self.epochs = Interruptions()
        self.disturbances, self.ranks = (self.epochs,), ALONE
        self.room = 1000  # steps that are left in the epoch
        self.loader = self
        self.max_steps = math.inf

    def count(self) -> Counts:
        return self.counts._replace(calls=self._machine.num_calls)

    def read_ahead(self, steps: int) -> float:
        return min(self.room, steps)


class Machine:
    """A host and a device whose clocks meet at a synchronisation; eager steps take 10 ms and 50 ms
    of them.
    """

    def __init__(self) -> None:
        self.arm, self.order = "eager", list[str]()
        self.num_calls, self.calls_per_step = 0, 2  # of modules
        self.host_s = self.device_s = self.used_j = 0.0

    def choose(self, arm: str) -> None:
        self.arm = arm

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def step(self) -> None:
        factor = 1.0 if self.arm == "eager" else 0.5
        self.order.append(self.arm)
        self.num_calls += self.calls_per_step
        self.used_j += 50 * factor
        start_s = max(self.host_s, self.device_s)
        self.host_s += 0.01 * factor
        self.device_s = max(start_s + 0.05 * factor, self.host_s)

    def run(
        self, steps: Steps[Any], after_step: Callable[[int], None] = lambda _number: None
    ) -> Any:
        """Run the steps that are asked for, and return the result."""
        for number in range(100_000):
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            self.step()
            after_step(number)
        raise AssertionError("there is no end")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(bench_module, "synchronize", made.synchronize)
    return made


@pytest.fixture
def loop(machine: Machine) -> Watched:
    return Watched(machine)


@pytest.fixture
def bench(machine: Machine, loop: Watched) -> LoopBench:
    made = LoopBench(torch.device("cuda"), machine, loop)  # type: ignore[arg-type]
    made.clock = lambda: machine.host_s
    return made


class MadeUpSubject(Subject):
    """Steps of which only the times are wanted."""

    def __init__(self, bench: LoopBench) -> None:
        self.trial, self.measure = SimpleNamespace(mode="default"), Measure()  # type: ignore[assignment]
        self.bench, self.monitor = bench, RoundMonitor(torch.device("cpu"))
        self.eager, self.compiled = EAGER, COMPILED

    def run_eager(self, _log: ProcessLog) -> Steps[None]:
        yield from ()

    def compile(self, log: ProcessLog) -> None: ...

    def require_compiled(self) -> None: ...


@pytest.fixture
def setup(bench: LoopBench) -> MadeUpSubject:
    return MadeUpSubject(bench)


def make_notes(process: Process | None = None) -> ProcessLog:
    return ProcessLog(lambda _phase: None, process or make_process(), Lease())


def test_a_block_and_its_steps_are_timed_until_the_device_is_idle(
    machine: Machine, bench: LoopBench
) -> None:
    assert machine.run(bench.block_s(EAGER, 4)) == pytest.approx(0.2)
    assert machine.run(bench.steps_s(EAGER, 3)) == pytest.approx([0.05] * 3)
    assert machine.run(bench.steps_s(COMPILED, 3, until_idle=False)) == pytest.approx([0.005] * 3)
    assert machine.order == [*["eager"] * 7, *["compiled"] * 3]


def test_a_block_begins_where_its_epoch_has_room_for_it(
    machine: Machine, bench: LoopBench, loop: Watched
) -> None:
    loop.room = 3

    def after_step(number: int) -> None:
        loop.room = 20 if number == 2 else loop.room - 1

    assert machine.run(bench.block_s(EAGER, 8), after_step) == pytest.approx(0.4)
    assert len(machine.order) == 3 + 8
    loop.max_steps = 19  # a block that fits in no epoch is timed as the script runs
    loop.room = 5
    assert machine.run(bench.block_s(EAGER, 30)) == pytest.approx(1.5)
    assert len(machine.order) == 3 + 8 + 30


def test_steps_that_differ_in_their_work_are_timed_by_their_calls(
    machine: Machine, bench: LoopBench
) -> None:
    """Steps with two calls and with six in turn, each of them four blocks; then without any."""
    times = []
    for number in range(8):
        machine.calls_per_step = 6 if number % 2 else 2
        times.append(machine.run(bench.block_s(EAGER, 4)))
    assert bench.is_per_call
    assert times[-2] / times[-1] == pytest.approx(3, rel=0.2)  # they take equally long
    machine.calls_per_step = 0
    assert machine.run(bench.block_s(EAGER, 4)) == pytest.approx(0.2)


def test_a_call_more_now_and_then_changes_no_time(machine: Machine, bench: LoopBench) -> None:
    def call_once_more(number: int) -> None:
        machine.num_calls += number == 5

    for _ in range(6):
        assert machine.run(bench.block_s(EAGER, 10)) == pytest.approx(0.5)
        assert machine.run(bench.block_s(EAGER, 10), call_once_more) == pytest.approx(0.5)
    assert not bench.is_per_call


def test_calls_of_an_evaluation_are_none_of_the_steps(
    machine: Machine, bench: LoopBench, loop: Watched
) -> None:
    """An evaluation with gradients on is in the first block, before its rhythm is known."""

    def evaluate(number: int) -> None:
        if number == 5:
            machine.num_calls += 60
            loop.counts = loop.counts._replace(evaluations=1)

    assert machine.run(bench.block_s(EAGER, 10), evaluate) == pytest.approx(0.5)
    for _ in range(6):
        assert machine.run(bench.block_s(EAGER, 10)) == pytest.approx(0.5)
    assert not bench.is_per_call


@pytest.mark.parametrize(("num_sizes", "least", "most"), [(1, 5, 15), (3, 15, 45)])
def test_first_steps_end_when_they_are_steady_or_fifteen_of_each_size(
    machine: Machine, bench: LoopBench, num_sizes: int, least: int, most: int
) -> None:
    bench.num_sizes, noted = num_sizes, list[int]()

    def hold_up(number: int) -> None:
        machine.host_s += 0.1 * 2**number

    def note(times_s: list[float]) -> None:
        noted.append(len(times_s))

    assert machine.run(bench.first_steps_s(COMPILED, note)) == [pytest.approx(0.025)] * least
    assert len(machine.run(bench.first_steps_s(COMPILED, note), hold_up)) == most
    assert noted == [*range(1, least + 1), *range(1, most + 1)]


def test_energy_of_a_step(machine: Machine, bench: LoopBench) -> None:
    found = machine.run(
        measure_energy(bench, {EAGER: 0.05, COMPILED: 0.025}, lambda: machine.used_j)
    )
    assert (found.eager, found.compiled) == (50.0, 25.0)
    turns = [arm for arm, _ in itertools.groupby(machine.order)]
    assert turns == ["eager", "compiled", "eager"]


@pytest.mark.parametrize("clock", ["block", "step"])
def test_rounds_that_are_complete_stay_when_the_script_ends(
    machine: Machine, setup: Any, clock: str
) -> None:
    """The third round is ended in its second block."""
    setup.measure = Measure(rounds=9, clock=clock)
    notes = make_notes(Process(0, 0, True, steps_per_block=4, first_steps_s=(1.0,)))
    steps = setup.time_rounds(notes)
    for _ in range(2 * 12 + 9):
        next(steps)
        machine.step()
    with pytest.raises(ScriptOverError):
        steps.throw(ScriptOverError("no more"))
    assert gc.isenabled()
    process = notes.process
    assert [(item.order, item.eager_s, item.compiled_s) for item in process.rounds] == [
        (order, pytest.approx(0.2), pytest.approx(0.1)) for order in ("AB", "BA")
    ]
    assert process.compile_s == pytest.approx(1 - 0.025)
    assert process.host is not None
    if clock == "block":
        assert process.latencies is None
        return
    assert process.latencies is not None
    assert (process.latencies.eager.p99_s, process.latencies.eager.steps) == (
        pytest.approx(0.05),
        8,
    )
    assert (process.latencies.compiled.p50_s, process.latencies.compiled.steps) == (
        pytest.approx(0.025),
        8,
    )


@pytest.fixture
def watched(setup: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A setup's monitor watches this, on a GPU whose peak is the number of the block."""
    blocks, made = itertools.count(), Watched(machine)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(memory, "read_allocator", lambda graphs: (next(blocks) + 1000 * graphs, 7))
    setup.monitor = LoopMonitor(torch.device("cpu"), made)  # type: ignore[arg-type]
    setup.monitor._device = torch.device("cuda")  # after NVML was asked for it
    return made


VOID = {
    "the script read another loader": ("others",),
    "the script saved a file": ("saved",),
    "the gradient scaler skipped a step": ("skipped",),
    "recompiled": ("programs",),
}


@pytest.mark.parametrize("reason", VOID)
def test_a_round_is_void_where_a_block_does_more_than_train(
    reason: str, machine: Machine, setup: Any, watched: Watched
) -> None:
    setup.measure = Measure(rounds=2, clock="step")
    notes = make_notes(Process(0, 0, True, steps_per_block=4))

    def happen(number: int) -> None:
        if number in (0, 12 + 4):  # in untimed steps, and in the first block of the second round
            watched.counts = watched.counts._replace(**dict.fromkeys(VOID[reason], number + 1))

    machine.run(setup.time_rounds(notes), happen)
    assert [item.void for item in notes.process.rounds] == [None, reason, None]
    assert setup.monitor.memory == {
        "compiled": memory.Reading(1004, 7),
        "eager": memory.Reading(5, 7),
    }
    assert notes.process.latencies is not None
    assert notes.process.latencies.eager.steps == 2 * 4


def test_a_script_that_saves_in_each_round_is_unsteady_and_its_memory_is_not_known(
    machine: Machine, setup: Any, watched: Watched
) -> None:
    steps = setup.time_rounds(make_notes(Process(0, 0, True, steps_per_block=4)))

    def save(number: int) -> None:
        watched.counts = watched.counts._replace(saved=number)

    with pytest.raises(UnsteadyError, match="3 of 3 rounds were void: the script saved a file"):
        machine.run(steps, save)
    assert setup.monitor.memory == {}


@pytest.fixture
def gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is busy for 10 ms of each eager step, and for 5 ms of each compiled one."""

    @contextmanager
    def recording() -> Iterator[Any]:
        before = len(machine.order)
        yield lambda: machine.order[before:]

    def read_work(arms: list[str]) -> list[Work]:
        each_ns, name = {"eager": 10**6, "compiled": 10**6 // 2}[arms[0]], "flash_fwd_kernel"
        starts = range(10 * len(arms))
        return [Work(at * each_ns, (at + 1) * each_ns, name=name) for at in starts]

    @contextmanager
    def noting_waits() -> Iterator[list[str]]:
        waits: list[str] = []
        yield waits
        waits += ["train.py:29"] if machine.arm == "eager" else []

    monkeypatch.setattr(device_time, "recording", recording)
    monkeypatch.setattr(device_time, "read_work", read_work)
    monkeypatch.setattr(device_time, "calibrate_gap_s", lambda: 1e-6)
    monkeypatch.setattr(host_time, "noting_waits", noting_waits)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("num_sizes", [1, 3])
def test_both_clocks_are_read_and_a_wait_is_named(
    machine: Machine, setup: Any, num_sizes: int
) -> None:
    setup.bench.num_sizes = num_sizes
    notes = make_notes()
    machine.run(setup.take_readings(notes))
    found = notes.process
    assert found.device_time_missing is None
    assert found.device_time_s == PerArm(pytest.approx(0.01), pytest.approx(0.005))
    assert found.device_kernels == PerArm(10, 10)
    assert found.host_step_s == PerArm(None, pytest.approx(0.005))
    assert found.host_time_missing == "eager: the step waits for the device by itself (train.py:29)"


@pytest.mark.usefixtures("gpu")
def test_what_the_profiler_raises_is_a_reason(
    machine: Machine, setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("CUPTI is busy")

    for module in (device_time, host_time):
        monkeypatch.setattr(module, "recording", fail)
    notes = make_notes()
    machine.run(setup.take_readings(notes))
    assert notes.process.device_time_missing == "RuntimeError: CUPTI is busy"
    # it would have to count launches
    assert notes.process.host_time_missing == "RuntimeError: CUPTI is busy"


@pytest.mark.usefixtures("gpu")
def test_what_the_script_raises_is_no_reason_and_ends_it(setup: Any) -> None:
    heard, left = list[Exception | None](), list[str]()
    notes = make_notes()

    def lead(_loop: Loop) -> Steps[None]:
        try:
            yield from setup.take_readings(notes)
        finally:
            left.append(notes.phase)

    loop, error = begin_loop(lead, heard.append), ValueError("no batch left")
    loop._go_on()
    loop.finish(error)
    assert heard == [error]
    assert left == ["profiling"]
    assert (notes.process.host_time_missing, notes.process.device_time_missing) == (None, None)


def test_phases_that_want_more_steps_of_a_script_that_has_failed_hear_of_it() -> None:
    heard: list[Exception | None] = []

    def lead(_loop: Loop) -> Steps[None]:
        while True:
            try:
                yield
            except Exception:  # noqa: BLE001  # a lead that does not listen
                continue

    loop, error = begin_loop(lead, heard.append), ValueError("no batch left")
    loop._go_on()
    loop.finish(error)
    assert heard == [error]
