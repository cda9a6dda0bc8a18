"""Outputs of any structure and format, and states that forward changes, in the check."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from worker_runs import custom, flags, private_cache, run

from sweeper.core.protocol import Outcome
from sweeper.core.trial import Model, Precision, Trial
from sweeper.worker.measurement.leaves import read_leaves

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


def trial_of(name: str, **changes: object) -> Trial:
    return replace(custom(name), model=Model("custom", f"output_models:{name}"), **changes)  # type: ignore[arg-type]


def passed(outcome: Outcome) -> bool | None:
    assert outcome.process is not None
    assert outcome.process.accuracy is not None, outcome.message
    return outcome.process.accuracy.passed


FIELDS = {
    "slots": "output._Slotted__inner[1][0] is off by",
    "user_dict": "output.more is missing in the compiled step, and float32 in eager",
    "exchanged": "output.pair.",
    "complex_field": "output.waves is off by",
    "attribute_of_a_list": "output.extra is off by",
    "text": "output.kind is 'other' in the compiled step, and 'fourier' in eager",
    "python_number": "100 % of the numbers in output.count are not eager's",
    "shorter_format": "output.signs is float16 in the compiled step, and float32 in eager",
    "subclass": "output.rows is float32 in the compiled step, and float32 Marked in eager",
    "wider_whole_numbers": "output.codes is int64 in the compiled step, and int8 in eager",
    "mask": "of the numbers in output.mask are not eager's",
    "tokens": "100 % of the numbers in output.ids are not eager's",
    "largest": "of the numbers in output.ids are not eager's",
    "alias": "output.same is off by",
}


# each is compared as another one is
ALIKE = ("attribute_of_a_list", "wider_whole_numbers", "mask", "largest")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in FIELDS],
)
def test_every_part_of_an_output_is_compared_in_training(name: str) -> None:
    right, _ = run(trial_of(name))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of(f"{name}_wrong"))
    assert (wrong.status, wrong.phase) == ("accuracy_mismatch", "checking"), wrong
    assert FIELDS[name] in str(wrong.message)


STATES = {
    "buffer": "change of buffer mean",
    "attribute": "change of attribute bank.rows[0]",
    "normalised": "change of parameter layer.weight",
    "teacher": "change of parameter teacher.",
    "hidden_teacher": "change of attribute hidden[0].",
}


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        *((name, "train") for name in STATES),
        ("buffer", "inference"),
        *(
            pytest.param(name, "inference", marks=pytest.mark.slow)
            for name in STATES
            if name != "buffer"
        ),
    ],
)
def test_state_that_forward_changes_is_compared(name: str, workload: str) -> None:
    right, _ = run(trial_of(name, workload=workload))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of(f"{name}_wrong", workload=workload))
    assert wrong.status == "accuracy_mismatch", wrong
    assert STATES[name] in str(wrong.message)


def test_tensor_that_each_step_puts_in_an_attribute_is_compared() -> None:
    right, _ = run(trial_of("replaced"))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of("replaced_wrong"))
    assert wrong.status == "accuracy_mismatch", wrong
    assert "change of attribute last" in str(wrong.message)


@pytest.mark.parametrize(
    "precision",
    [Precision(), pytest.param(Precision(autocast="bfloat16"), marks=pytest.mark.slow)],
)
def test_argmax_of_a_near_tie_may_be_either(precision: Precision) -> None:
    right, _ = run(trial_of("shown_ties", precision=precision))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of("shown_ties_with_a_fault", precision=precision))
    assert wrong.status == "accuracy_mismatch", wrong
    assert "output.ids" in str(wrong.message)


@pytest.mark.parametrize(
    ("name", "says"),
    [("wrong_later", "against float64"), ("wrong_later_and_random", "over seeds is ")],
)
def test_program_that_changes_its_way_in_the_rounds_is_a_mismatch(name: str, says: str) -> None:
    outcome, phases = run(trial_of(name, optimizer="none"))
    assert outcome.status == "accuracy_mismatch", outcome
    assert says in str(outcome.message)
    assert "after the rounds" in str(outcome.message)
    assert "measuring" in phases


def test_a_program_that_was_compiled_in_the_rounds_is_judged_in_the_state_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sweeper.worker.subject import Subject

    time_rounds = Subject.time_rounds

    def compile_again(subject, log):
        subject.built.module.rate = 0  # which is guarded, and was 0.0
        yield from time_rounds(subject, log)

    monkeypatch.setattr(Subject, "time_rounds", compile_again)
    outcome, _ = run(trial_of("wrong_later", optimizer="none"))
    assert outcome.status == "accuracy_mismatch", outcome
    assert "after the rounds" in str(outcome.message)


def test_generator_of_the_model_is_found_and_put_back() -> None:
    trial = trial_of("own_generator", batch_size=64)
    outcome, _ = run(trial)
    assert (outcome.status, passed(outcome)) == ("ok", True), outcome
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.randomness == "seeds"
    wrong, _ = run(trial_of("own_generator_at_another_rate", batch_size=64))
    assert wrong.status == "accuracy_mismatch", wrong


def test_whole_numbers_of_a_random_step_are_compared_where_no_seed_changes_them() -> None:
    right, _ = run(trial_of("random_with_ids", batch_size=64))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of("random_with_wrong_ids", batch_size=64))
    assert wrong.status == "accuracy_mismatch", wrong
    assert "100 % of the numbers in output.ids are not eager's" in str(wrong.message)


def test_random_whole_numbers_are_compared_over_seeds() -> None:
    right, _ = run(trial_of("random_counts", batch_size=64))
    assert (right.status, passed(right)) == ("ok", True), right
    wrong, _ = run(trial_of("random_counts_at_another_rate", batch_size=64))
    assert wrong.status == "accuracy_mismatch", wrong
    assert "the coefficient of output.count over seeds is 0.7" in str(wrong.message)


@pytest.mark.parametrize("member", [torch.ones(2), numpy.int64(3), frozenset({torch.ones(2)})])
def test_a_set_with_a_tensor_or_an_array_is_not_looked_into(member: object) -> None:
    plain = {1, "b", torch.int8, frozenset({2.5})}
    assert read_leaves("output", {"tags": plain}).unseen == []
    assert read_leaves("output", {"tags": {*plain, member}}).unseen == ["output.tags (set)"]


def test_part_that_is_not_looked_into_leaves_the_trial_unverified() -> None:
    trial = trial_of("not_looked_into")
    outcome, _ = run(trial)
    assert (outcome.status, passed(outcome)) == ("ok", None), outcome
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert "output.next (list_iterator)" in str(outcome.process.accuracy.unverified)
    assert "accuracy_unverified" in flags(trial, outcome)
