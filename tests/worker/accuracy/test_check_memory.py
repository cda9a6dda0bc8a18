"""The check where memory is short: the device is full, or other trials have memory of it."""

from __future__ import annotations

import math
import weakref

import pytest
from worker_runs import accuracy_of, custom, faulty, private_cache, run

from sweeper.core.trial import Trial

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


@pytest.mark.slow
def test_verdict_for_which_memory_is_short_is_given_at_the_second_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from sweeper.worker.accuracy import rule

    tries, judge = [], rule.judge

    def short_of_memory(*arguments):
        tries.append(arguments)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return judge(*arguments)

    monkeypatch.setattr(rule, "judge", short_of_memory)
    outcome, _ = run(custom("wide_mlp", backend="inductor"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed
    assert len(tries) in (
        1 + 4,
        1 + 5,
        1 + 6,
    )  # three cases, and up to three looks after the rounds


@pytest.mark.parametrize("is_large", [False, True])
def test_a_check_that_does_not_fit_beside_other_trials_ends_the_trial(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """Its driver runs it again, with the device to itself. A small model tries the host first."""
    import torch

    from sweeper.worker.accuracy import check
    from sweeper.worker.model_subject import ModelSubject

    num_tries = 0

    def fill(*_arguments: object) -> None:
        nonlocal num_tries
        num_tries += 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(check, "HOST", torch.device("cpu", 0))
    monkeypatch.setattr(check, "run_reference", fill)
    monkeypatch.setattr(check, "LARGE_BYTES", 0 if is_large else math.inf)
    alone, _ = run(custom("mlp"))
    assert alone.status == "ok", "it goes on without a reference in float64"
    num_tries = 0
    monkeypatch.setattr(ModelSubject, "has_neighbours", lambda _self: True)
    outcome, _ = run(custom("mlp"))
    assert (outcome.status, outcome.phase) == ("oom", "reference")
    assert outcome.message == "the check does not fit beside other trials"
    assert num_tries == (1 if is_large else 2)


@pytest.mark.parametrize(
    ("trial", "full_in"),
    [
        (custom("mlp"), "eager"),
        (custom("mlp"), "reference"),
        (custom("mlp"), "compiled"),
        (custom("mlp"), "comparison"),
        (faulty("functional_dropout", batch_size=64), "compiled"),
    ],
    ids=["eager", "reference", "compiled", "comparison", "over_seeds"],
)
def test_case_for_which_the_device_is_full_begins_again_on_the_host(
    trial: Trial, full_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name of the CPU stands for the host."""
    import torch

    from sweeper.worker.accuracy import check
    from sweeper.worker.accuracy.check import AccuracyCheck

    host, places = torch.device("cpu", 0), []
    monkeypatch.setattr(check, "HOST", host)
    capture, take = AccuracyCheck._capture, AccuracyCheck._run_reference

    def fill(place: torch.device, kind: str) -> None:
        if kind == full_in:
            places.append(place)
            if place != host:
                raise torch.OutOfMemoryError("CUDA out of memory")

    def capture_or_fill(self, arm, *arguments, **options):
        fill(self._place, arm.name)
        return capture(self, arm, *arguments, **options)

    def take_or_fill(self, *arguments, **options):
        fill(self._place, "reference")
        return take(self, *arguments, **options)

    compare = AccuracyCheck._compare_with_reference

    def compare_or_fill(self, *arguments):
        fill(self._place, "comparison")
        return compare(self, *arguments)

    monkeypatch.setattr(AccuracyCheck, "_compare_with_reference", compare_or_fill)
    monkeypatch.setattr(AccuracyCheck, "_capture", capture_or_fill)
    monkeypatch.setattr(AccuracyCheck, "_run_reference", take_or_fill)
    outcome, _ = run(trial)
    found = accuracy_of(outcome)
    assert (outcome.status, found.passed) == ("ok", True), outcome.message
    assert found.reference == ("float64" if trial.batch_size == 4 else None)
    assert places[0] != host
    assert set(places[1:]) == {host}, "what follows is on the host at once"


def test_step_that_fails_leaves_nothing_of_what_was_seen_of_it() -> None:
    import torch

    from sweeper.worker.measurement.attributes import Attributes
    from sweeper.worker.measurement.capture import Changes, OutputCapture, capture_step
    from sweeper.worker.models.batches import Batch

    module, trial = torch.nn.Linear(2, 2), custom("wide_mlp")
    capture = OutputCapture()
    changes = Changes(module, Attributes(module), Batch(), None)
    loss = capture.wrap(lambda output, _batch: output.sum())

    def fails() -> None:
        loss(module(torch.ones(1, 2)), None)
        assert capture.output
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        list(capture_step(fails, capture, changes, trial))
    assert capture.output == []


def test_step_that_is_seen_keeps_no_output_alive() -> None:
    import torch

    from sweeper.worker.measurement.attributes import Attributes
    from sweeper.worker.measurement.capture import Changes, OutputCapture
    from sweeper.worker.models.batches import Batch

    capture, output, module = OutputCapture(), torch.ones(3), torch.nn.Module()
    capture.changes = Changes(module, Attributes(module), Batch(), None)
    capture.wrap(lambda output, _batch: output.sum())(output, Batch())
    alive = weakref.ref(output)
    del output
    assert alive() is None
    assert [(name, kept.tolist()) for name, kept in capture.output] == [("output", [1.0, 1.0, 1.0])]
