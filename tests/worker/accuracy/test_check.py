"""The check on models that compute something else when they are compiled, and on models that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worker_runs import custom, flags, private_cache, run

from sweeper.core.protocol import Outcome
from sweeper.core.record import Accuracy
from sweeper.core.trial import Compile, Model, Precision, Trial

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses

AMP = Precision(autocast="bfloat16")


def faulty(name: str, **changes: object) -> Trial:
    return replace(custom(name), **{"model": Model("custom", f"wrong_models:{name}"), **changes})  # type: ignore[arg-type]


def accuracy_of(outcome: Outcome) -> Accuracy:
    assert outcome.process is not None
    assert outcome.process.accuracy is not None, outcome.message
    return outcome.process.accuracy


@pytest.mark.parametrize(
    ("name", "changes", "worst"),
    [
        ("zero_init", {}, "gradient"),
        ("zero_init", {"precision": AMP}, "gradient"),
        ("layer_scale", {}, "gradient"),
        ("layer_scale", {"precision": AMP}, "gradient"),
        ("mask_of_infinity", {}, "gradient"),
        ("hook_on_a_parameter", {}, "gradient of first.weight"),
        ("buffer_not_updated", {}, "change of buffer norm.running_"),
        ("buffer_not_updated", {"precision": AMP}, "change of buffer norm.running_"),
        ("input_not_written", {}, "change of input 0"),
        ("second_batch_alone", {}, ""),
        ("largest_size_alone_is_right", {"vary": {"batch_size": [2, 4]}}, ""),
        ("deep_norms_doubled", {"precision": AMP}, "gradient"),
    ],
)
def test_wrong_step_is_a_mismatch(name: str, changes: dict[str, object], worst: str) -> None:
    outcome, _ = run(faulty(name, optimizer="sgd", **changes))
    assert (outcome.status, outcome.phase) == ("accuracy_mismatch", "checking"), outcome
    assert str(accuracy_of(outcome).worst).startswith(worst)


@pytest.mark.parametrize("precision", [Precision(), AMP], ids=["fp32", "amp"])
@pytest.mark.parametrize(
    "name",
    [
        "right_zero_init", "right_layer_scale", "right_mask_of_infinity", "right_hook_on_a_parameter",
        "right_deep_norms",
    ],
)  # fmt: skip
def test_right_step_of_the_same_model_passes(name: str, precision: Precision) -> None:
    trial = faulty(name, optimizer="sgd", precision=precision)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert found.passed, found
    assert flags(trial, outcome) == set()
    assert found.moved == "full"
    assert found.cases == ("as built, unseen batch", "moved, batch 1", "moved, batch 2")


@pytest.mark.parametrize("workload", ["train", "inference"])
def test_every_size_and_every_timed_batch_is_judged(workload: str) -> None:
    outcome, _ = run(custom("mlp", workload=workload, batch_size=6, vary={"batch_size": [2, 6, 3]}))
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert found.cases == ("as built, unseen batch", *(f"moved, batch {index}" for index in range(1, 7)))
    assert found.elements is not None
    assert found.elements > 6 * 4


@pytest.mark.parametrize("precision", [Precision(), AMP], ids=["fp32", "amp"])
def test_optimizer_that_does_nothing_is_seen_where_it_is_compiled(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Idle(torch.optim.Adam):
        def step(self, closure=None):
            return None if torch.compiler.is_compiling() else super().step(closure)

    trial = custom("mlp", compile=Compile(scope="step"), precision=precision)
    right, _ = run(trial)
    assert right.status == "ok", right.message
    assert accuracy_of(right).passed
    monkeypatch.setattr(torch.optim, "Adam", Idle)
    torch._dynamo.reset()
    wrong, _ = run(trial)
    assert wrong.status == "accuracy_mismatch", wrong


@pytest.mark.parametrize(("fault", "status"), [(3.0, "accuracy_mismatch"), (1.0, "ok")])
def test_code_that_was_compiled_after_the_check_is_checked(
    fault: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweeper.worker import session

    measure_rounds = session._measure_rounds

    def change_and_measure(setup, notes):
        setup.built.module.late, setup.built.module.fault = True, fault
        measure_rounds(setup, notes)

    monkeypatch.setattr(session, "_measure_rounds", change_and_measure)
    outcome, phases = run(faulty("changes_later", optimizer="none"))
    assert outcome.status == status, outcome
    assert "checking" in phases[phases.index("measuring") :]
    assert accuracy_of(outcome).passed is (status == "ok")


def test_code_that_was_compiled_after_the_check_and_cannot_be_checked_is_unverified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sweeper.worker import session

    measure_rounds = session._measure_rounds

    def change_and_measure(setup, notes):
        setup.built.module.late = True
        measure_rounds(setup, notes)

        def fails(*_arguments, **_options):
            raise KeyError("no reference any more")

        monkeypatch.setattr("sweeper.worker.accuracy.check.run_reference", fails)

    monkeypatch.setattr(session, "_measure_rounds", change_and_measure)
    trial = faulty("changes_later", optimizer="none")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome
    assert accuracy_of(outcome).passed is None
    assert {"accuracy_unverified", "recompiled"} <= flags(trial, outcome)


@pytest.mark.parametrize("name", ["hook_that_counts", "hook_that_draws"])
def test_hooks_that_keep_state_or_draw_random_numbers_leave_the_step_unverified(name: str) -> None:
    trial = faulty(name)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome
    found = accuracy_of(outcome)
    assert found.passed is None
    assert "hook" in str(found.unverified)
    assert "accuracy_unverified" in flags(trial, outcome)
