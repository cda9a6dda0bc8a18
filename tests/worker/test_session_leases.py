"""What a process asks of the device, in which order."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from worker_runs import MEASURE, accuracy_of, custom, private_cache  # noqa: F401  # used by its name

from sweeper.core.protocol import ALONE, DEVICE, NOTHING, SHARED, SOLE, Job, LeaseGrant, Outcome
from sweeper.worker import process_log, session
from sweeper.worker.lease import Lease

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("private_cache")]
RunShared = Callable[..., tuple[Outcome, list[str]]]


@pytest.fixture
def run_shared(monkeypatch: pytest.MonkeyPatch) -> RunShared:
    """Runs a trial beside another one, as on a GPU whose NVML knows this process, and gives its
    outcome, and what it asks for and does: on a CPU nothing is shared.
    """
    asked: list[str] = []

    build = session.build

    def build_and_share(job: Job, log: process_log.ProcessLog) -> object:
        subject = build(job, log)
        log.lease.may_share = True
        return subject

    monkeypatch.setattr(session, "build", build_and_share)

    def say(phase: object) -> None:
        asked.append(phase.name)  # type: ignore[attr-defined]

    def run(neighbours: tuple[int, ...] = (7,)) -> tuple[Outcome, list[str]]:
        def ask(wants: str) -> LeaseGrant:
            asked.append(wants)
            return LeaseGrant(neighbours=neighbours)

        job, slot = Job(custom("mlp"), MEASURE), process_log.ProcessSlot()
        return process_log.run(job, slot, say, Lease(ask), session.measure_model), asked

    return run


def test_what_is_timed_has_the_device_alone_and_steps_and_checks_share_it(
    run_shared: RunShared,
) -> None:
    outcome, asked = run_shared()
    assert outcome.status == "ok", outcome.message
    held = " ".join(word for word in asked if word in (NOTHING, DEVICE, SHARED, ALONE))
    compiled = "( nothing shared)+"  # without the device; then it goes on
    assert re.fullmatch(f"device nothing shared{compiled} nothing alone nothing shared", held)
    assert asked.index("eager") < asked.index("compiling") < asked.index(SHARED)
    alone = asked[asked.index(ALONE) + 1 :]
    assert alone == ["warming", "measuring", "memory", "profiling", NOTHING, SHARED, "reference"]


def fill_before_references(
    monkeypatch: pytest.MonkeyPatch, is_full: Callable[[object, object], bool]
) -> None:
    """Have references run out of memory where `is_full` says so of their place and number format;
    another name of the CPU stands for the host.
    """
    import torch

    from sweeper.worker.accuracy import check
    from sweeper.worker.accuracy.check import AccuracyCheck

    monkeypatch.setattr(check, "HOST", torch.device("cpu", 0))
    take = AccuracyCheck._run_reference

    def take_or_fill(self, case, dtype, *arguments, **options):
        if is_full(self._place, dtype):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(self, case, dtype, *arguments, **options)

    monkeypatch.setattr(AccuracyCheck, "_run_reference", take_or_fill)


def test_a_check_that_runs_out_of_memory_beside_others_waits_for_the_sole_share(
    run_shared: RunShared, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def is_first(place: object, _dtype: object) -> bool:
        places.append(place)
        return len(places) == 1

    fill_before_references(monkeypatch, is_first)
    outcome, asked = run_shared()
    assert (outcome.status, accuracy_of(outcome).reference) == ("ok", "float64"), outcome.message
    assert asked.count(SOLE) == 1
    begin = asked.index(SOLE)
    assert asked[begin - 1] == NOTHING
    assert [word for word in asked[begin + 1 :] if word in (NOTHING, ALONE)][:2] == [NOTHING, ALONE]
    assert len(places) > 1
    assert len(set(places)) == 1, "nothing is moved to the host"


def test_a_check_that_went_to_the_host_has_nobody_beside_it_after_the_rounds_either(
    run_shared: RunShared, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweeper.worker.accuracy.check import AccuracyCheck

    def ask_for_a_reference(*_) -> None:
        raise ValueError

    fill_before_references(monkeypatch, lambda _place, dtype: str(dtype) == "torch.float64")
    monkeypatch.setattr(AccuracyCheck, "_compare_arms", ask_for_a_reference)
    outcome, asked = run_shared(neighbours=())
    assert (outcome.status, accuracy_of(outcome).reference) == ("ok", "float32"), outcome.message
    assert asked.count(SOLE) == 2
    assert asked.index(SOLE) < asked.index(ALONE)
