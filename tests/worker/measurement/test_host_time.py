"""Host time on a simulated device with a queue; that torch and a real GPU behave so is in
test_gpu.py.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from records import make_process

from sweeper.core.record import PerArm
from sweeper.worker.lease import Lease
from sweeper.worker.measurement import host_time, readings
from sweeper.worker.measurement.bench import Arm, ModelBench, Steps, complete
from sweeper.worker.measurement.host_time import (
    explain_unknown,
    find_wait,
    host_per_step,
    time_arms,
)
from sweeper.worker.models.batches import Batch
from sweeper.worker.process_log import ProcessLog

ALTERNATING = (Batch(args=(1.0,)), Batch(args=(1.0,)))


class Machine(ModelBench):
    """A host that launches and a device that works, each with a clock of its own; they meet at a
    synchronisation.
    """

    def __init__(self, batches: tuple[Batch, ...] = ALTERNATING, num_sizes: int = 1) -> None:
        super().__init__(batches, torch.device("cpu"), lambda: self.host_s, num_sizes)
        self.host_s = self.device_s = 0.0
        self.order: list[str] = []

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def arm(self, name: str, host_s: float, device_s: float, waits: bool = False) -> Arm:
        """An arm whose steps take these seconds, times the size of the batch."""

        def step(batch: Batch) -> None:
            self.order.append(name)
            size = batch.args[0]
            start_s = max(self.host_s, self.device_s)
            self.host_s += host_s * size
            self.device_s = max(start_s + device_s * size, self.host_s)
            if waits:
                warnings.warn(
                    "called a synchronizing CUDA operation (Triggered internally)", stacklevel=1
                )
                self.synchronize()

        return Arm(name, step, eager=True)


@pytest.fixture(autouse=True)
def modes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The debug modes that were set, in order; there is no GPU to set them for."""
    found: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", found.append)
    return found


def measure(
    machine: Machine,
    eager: Arm,
    compiled: Arm,
    wall_s: float = 0.1,
    device_s: float | None = 0.05,
    kernels: float | None = 100,
) -> dict[str, float | str]:
    """The host time of each arm, or why it is not known."""
    arms, found = (eager, compiled), dict[str, float | str]()
    host_s = complete(time_arms(machine, arms, {"eager": wall_s, "compiled": wall_s}))
    for arm in arms:
        own_s = host_s[arm.name]
        reason = complete(explain_unknown(machine, arm, own_s, device_s, kernels))
        found[arm.name] = reason or own_s
    return found


def give(value: object, told: Callable[[], object] = lambda: None) -> Callable[..., Steps[object]]:
    """Make a function that runs no steps, tells of its call and gives a value."""

    def take(*_: object) -> Steps[object]:
        told()
        yield from ()
        return value

    return take


@pytest.fixture
def measure_host_time(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[SimpleNamespace, ProcessLog], None]:
    """Measure as a session does, but for the device's own time."""
    monkeypatch.setattr(readings, "measure_device_time", give(None))
    return lambda setup, notes: complete(
        readings.profile(setup.bench, (setup.eager, setup.compiled), notes)
    )  # type: ignore[arg-type]


def test_host_time_is_that_of_the_call_however_long_the_device_works() -> None:
    machine = Machine()
    found = measure(
        machine, machine.arm("eager", 0.02, 0.09), machine.arm("compiled", 0.004, 0.001)
    )
    assert found == {"eager": pytest.approx(0.02), "compiled": pytest.approx(0.004)}


def test_arms_take_turns_and_the_collector_is_off_only_meanwhile() -> None:
    machine, collecting = Machine(), []
    eager, compiled = machine.arm("eager", 0.02, 0.01), machine.arm("compiled", 0.02, 0.01)
    observed = Arm(
        "eager", lambda batch: (collecting.append(gc.isenabled()), eager.step(batch)), eager=True
    )
    measure(machine, observed, compiled)
    # two untimed steps before two timed ones
    timed = [*["eager"] * 4, *["compiled"] * 8, *["eager"] * 4]
    assert machine.order[: len(timed)] == timed
    assert not any(collecting[:8])
    assert gc.isenabled()


def test_an_arm_that_waits_by_itself_has_no_host_time_and_the_other_has(
    modes: list[object],
) -> None:
    machine = Machine()
    eager = machine.arm("eager", 0.02, 0.09, waits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(machine, eager, machine.arm("compiled", 0.004, 0.001))
    assert str(found["eager"]).startswith(
        "the step waits for the device by itself (test_host_time.py:"
    )
    assert found["compiled"] == pytest.approx(0.004)
    assert modes == ["warn", 0, "warn", 0]


def test_the_debug_mode_is_restored_after_a_step_that_raises(modes: list[object]) -> None:
    def fail(_batch: Batch) -> None:
        raise RuntimeError("no step")

    with pytest.raises(RuntimeError, match="no step"):
        complete(find_wait(Machine(), Arm("eager", fail, eager=True)))
    assert modes == ["warn", 0]


def test_other_warnings_are_no_waits() -> None:
    arm = Arm("eager", lambda _batch: warnings.warn("slow", stacklevel=1), eager=True)
    assert complete(find_wait(Machine(), arm)) is None


@pytest.mark.parametrize(
    ("device_s", "kernels", "launches", "is_known"),
    [
        (0.05, 1000, 1000, True),
        (0.05, 1001, 1001, False),
        (0.02, 1001, 1001, True),  # the host was not faster, so the queue did not fill
        (0.05, 1001, 3, True),  # replays of CUDA graphs
        (None, 1001, 1001, False),
        (None, None, 1000, True),
        (None, None, 1001, False),
    ],
)
def test_a_step_that_may_have_filled_the_queue_has_no_host_time(
    device_s: float | None,
    kernels: float | None,
    launches: int,
    is_known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_time, "count_launches", give(launches))
    machine = Machine()
    arms = machine.arm("eager", 0.02, 0.05), machine.arm("compiled", 0.02, 0.05)
    found = measure(machine, *arms, 0.05, device_s, kernels)
    assert isinstance(found["eager"], float) is is_known
    if not is_known:
        assert found["eager"] == (
            "the step has 1,001 launches, more than the queue of the device holds"
        )


def test_sizes_that_vary_count_alike() -> None:
    machine = Machine((Batch(args=(1.0,)), Batch(args=(3.0,))), num_sizes=2)
    found = measure(machine, machine.arm("eager", 0.02, 0.09), machine.arm("compiled", 0.01, 0.09))
    assert found == {"eager": pytest.approx(0.04), "compiled": pytest.approx(0.02)}


def test_a_step_that_was_held_up_does_not_count() -> None:
    assert host_per_step([0.02, 0.02, 0.5, 0.02, 0.02]) == pytest.approx(0.02)
    assert host_per_step([0.02, 0.06, 0.02, 0.06, 0.9, 0.06], num_sizes=2) == pytest.approx(0.04)


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_the_record_says_which_arm_has_no_host_time_and_why(
    measure_host_time: Callable[..., None],
) -> None:
    machine = Machine()
    arms = {
        "eager": machine.arm("eager", 0.02, 0.09, waits=True),
        "compiled": machine.arm("compiled", 0.004, 0.001),
    }
    notes = ProcessLog(
        lambda _phase: None, replace(make_process(), device_kernels=PerArm(100, 100)), Lease()
    )
    measure_host_time(SimpleNamespace(bench=machine, **arms), notes)
    assert notes.process.host_step_s == PerArm(None, pytest.approx(0.004))
    assert notes.process.host_time_missing is not None
    assert notes.process.host_time_missing.startswith(
        "eager: the step waits for the device by itself (test_host_time.py"
    )


def test_a_step_that_raises_leaves_a_reason(measure_host_time: Callable[..., None]) -> None:
    def fail(_batch: Batch) -> None:
        raise RuntimeError("no step")

    notes = ProcessLog(lambda _phase: None, make_process(), Lease())
    arm = Arm("eager", fail, eager=True)
    measure_host_time(SimpleNamespace(bench=Machine(), eager=arm, compiled=arm), notes)
    assert (notes.process.host_step_s, notes.process.host_time_missing) == (
        None,
        "RuntimeError: no step",
    )


def test_the_host_is_timed_before_anything_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI stays attached to a process that has profiled, and launches take longer."""
    order: list[str] = []
    host_s = {"eager": 0.02, "compiled": 0.01}
    monkeypatch.setattr(host_time, "time_arms", give(host_s, lambda: order.append("host")))
    monkeypatch.setattr(readings, "measure_device_time", give(None, lambda: order.append("device")))
    monkeypatch.setattr(host_time, "find_wait", give(None, lambda: order.append("waits")))
    monkeypatch.setattr(host_time, "count_launches", give(3))
    notes, arm = (
        ProcessLog(lambda _phase: None, make_process(), Lease()),
        Arm("eager", lambda _batch: None, eager=True),
    )
    setup = SimpleNamespace(bench=Machine(), eager=arm, compiled=replace(arm, name="compiled"))
    complete(readings.profile(setup.bench, (setup.eager, setup.compiled), notes))  # type: ignore[arg-type]
    assert order == ["host", "device", "waits", "waits"]
    assert notes.process.host_step_s == PerArm(0.02, 0.01)
