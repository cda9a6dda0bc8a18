from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from records import make_record, make_trial

from sweeper.analysis.derive import derive
from sweeper.core.settings import Settings
from sweeper.core.system.gpus import Device, Gpu
from sweeper.core.trial import Trial
from sweeper.execution import scheduler
from sweeper.execution.placement import DeviceSlot
from sweeper.execution.scheduler import (
    Event,
    Finished,
    OnPhase,
    PhaseBegan,
    Started,
    Steps,
    run_all,
)

GPUS = [Gpu(str(index), f"GPU-{index}", "A GPU") for index in range(3)]
SLOTS = [DeviceSlot(Device("cuda", gpu)) for gpu in GPUS]
TRIALS = [make_trial(batch_size=size) for size in range(1, 9)]


def finish(trial: Trial, status: str = "ok") -> Finished:
    record = make_record(trial=trial, status=status)
    return Finished(record, derive(record))


def run_at_once(
    trials: Sequence[Trial], slots: Sequence[DeviceSlot], run: Callable[..., Finished]
) -> Generator[Event, None, None]:
    """Run trials of one process each."""

    def begin(*arguments: object) -> Steps[Finished]:
        return run(*arguments)
        yield None

    return run_all(trials, slots, begin, Settings("s"))


def test_every_trial_runs_once_and_is_told_in_order() -> None:
    def run(
        trial: Trial,
        _slot: DeviceSlot,
        on_phase: OnPhase,
        _stop: threading.Event,
    ) -> Finished:
        on_phase(PhaseBegan(trial, "building", 0))
        return finish(trial)

    events = list(run_at_once(TRIALS, SLOTS, run))
    for trial in TRIALS:
        of_trial = [
            type(item).__name__
            for item in events
            if (getattr(item, "trial", None) or item.record.trial) == trial
        ]
        assert of_trial == ["Started", "PhaseBegan", "Finished"]


def test_slots_work_beside_each_other() -> None:
    """Each of three trials waits for the other two, which only ends when all three run at once."""
    together = threading.Barrier(3, timeout=60)
    used: dict[int, str] = {}

    def run(trial: Trial, slot: DeviceSlot, _on_phase: object, _stop: threading.Event) -> Finished:
        together.wait()
        used[trial.batch_size] = slot.device.gpu.selector if slot.device.gpu else ""
        return finish(trial)

    assert (
        len([item for item in run_at_once(TRIALS[:3], SLOTS, run) if isinstance(item, Finished)])
        == 3
    )
    assert set(used.values()) == {"0", "1", "2"}


def test_a_device_has_several_trials_in_flight() -> None:
    """Each of four trials waits for the other three."""
    together = threading.Barrier(4, timeout=60)
    used: list[str] = []

    def run(trial: Trial, slot: DeviceSlot, _on_phase: object, _stop: threading.Event) -> Finished:
        together.wait()
        used.append(slot.device.gpu.selector if slot.device.gpu else "")
        return finish(trial)

    slots = [DeviceSlot(Device("cuda", gpu), concurrency=2) for gpu in GPUS[:2]]
    assert (
        len([item for item in run_at_once(TRIALS[:4], slots, run) if isinstance(item, Finished)])
        == 4
    )
    assert sorted(used) == ["0", "0", "1", "1"]


def test_interrupt_ends_what_runs_and_starts_no_other() -> None:
    def run(trial: Trial, _slot: DeviceSlot, _on_phase: object, stop: threading.Event) -> Finished:
        if trial == TRIALS[0]:
            return finish(trial)
        assert stop.wait(60)
        return finish(trial, "interrupted")

    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    # ignored where a script runs in the background
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        events = list(run_at_once(TRIALS, SLOTS, run))
    finally:
        signal.signal(signal.SIGINT, before)
    statuses = [item.record.status for item in events if isinstance(item, Finished)]
    assert sorted(statuses) == ["interrupted"] * 3 + ["ok"]
    assert len([item for item in events if isinstance(item, Started)]) == 4


def test_what_goes_wrong_is_raised_when_the_others_have_ended() -> None:
    failed, began = threading.Event(), threading.Barrier(2)

    def run(trial: Trial, _slot: DeviceSlot, _on_phase: object, _stop: threading.Event) -> Finished:
        began.wait(60)
        if trial == TRIALS[0]:
            failed.set()
            raise OSError("no space")
        assert failed.wait(60)
        time.sleep(0.2)
        return finish(trial)

    finished: list[Finished] = []
    events = run_at_once(TRIALS, SLOTS[:2], run)
    with pytest.raises(OSError, match="no space"):
        finished.extend(item for item in events if isinstance(item, Finished))
    assert len(finished) == 1, "what ran has ended, the rest was not begun"


def test_whoever_has_had_enough_ends_the_trials() -> None:
    ended = threading.Event()

    def run(trial: Trial, _slot: DeviceSlot, _on_phase: object, stop: threading.Event) -> Finished:
        assert stop.wait(60)
        ended.set()
        return finish(trial, "interrupted")

    events = run_at_once(TRIALS, SLOTS[:1], run)
    assert isinstance(next(events), Started)
    events.close()
    assert ended.is_set()


def test_each_device_has_one_trial_before_any_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials come longest first."""
    order: list[str] = []

    class Noted(threading.Thread):
        def __init__(self, *, args: tuple[DeviceSlot], **options: Any) -> None:
            order.append(args[0].device.gpu.selector)  # type: ignore[union-attr]
            super().__init__(args=args, **options)

    monkeypatch.setattr(
        scheduler, "threading", SimpleNamespace(Thread=Noted, Event=threading.Event)
    )
    slots = [
        DeviceSlot(Device("cuda", gpu), concurrency=count)
        for gpu, count in zip(GPUS, (2, 1, 3), strict=True)
    ]
    events = run_at_once(TRIALS, slots, lambda trial, *_arguments: finish(trial))
    assert len([item for item in events if isinstance(item, Finished)]) == len(TRIALS)
    assert order == ["0", "1", "2", "0", "2", "2"]


def test_second_interrupt_is_raised() -> None:
    """Each comes from the trial that runs, while the caller waits for an event."""
    interrupted = threading.Event()

    def run(trial: Trial, _slot: DeviceSlot, _on_phase: object, stop: threading.Event) -> Finished:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(60)
        return finish(trial, "interrupted")

    class Stop(threading.Event):
        """The caller sets it at the first interrupt, and again when the second is raised."""

        def set(self) -> None:
            if self.is_set():
                interrupted.set()
            super().set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                scheduler, "threading", SimpleNamespace(Thread=threading.Thread, Event=Stop)
            )
            with pytest.raises(KeyboardInterrupt):
                list(run_at_once(TRIALS[:2], SLOTS[:1], run))
    finally:
        signal.signal(signal.SIGINT, before)


def test_first_of_two_errors_is_raised() -> None:
    raised = threading.Event()

    def run(trial: Trial, _slot: DeviceSlot, _on_phase: object, _stop: threading.Event) -> Finished:
        if trial == TRIALS[0]:
            raised.set()
            raise OSError("first")
        assert raised.wait(60)
        time.sleep(0.2)
        raise OSError("second")

    with pytest.raises(OSError, match="first"):
        list(run_at_once(TRIALS[:2], SLOTS[:2], run))
