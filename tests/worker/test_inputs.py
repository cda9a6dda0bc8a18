"""Inputs of a user's own model: what they mean is kept, and several batches are taken as they are
given.
"""

from __future__ import annotations

import subprocess
import sys

import given_inputs
import pytest
import torch
import worker_runs
from worker_runs import private_cache, run

from sweeper.core.trial import Compile, Trial
from sweeper.worker import models
from sweeper.worker.models import Built, batches, custom_models

assert private_cache  # a fixture that every test here uses

STRUCTURED = [
    "bags_with_offsets",
    "graph_with_edges",
    "sorted_lengths",
    "cumulative_lengths",
    "mask_of_infinities",
]
CPU = torch.device("cpu")


def custom(name: str, **changes: object) -> Trial:
    module = "given_inputs" if hasattr(given_inputs, name) else "factories"
    return worker_runs.custom(name, module, **changes)


def build(factory: str, **changes: object) -> Built:
    return models.build(custom(factory, **changes), 0, CPU)


def problem(factory: str) -> str:
    (found,) = custom_models.examine(custom(factory)).problems
    return found


@pytest.mark.compile
@pytest.mark.parametrize("factory", STRUCTURED)
def test_inputs_with_structure_train(factory: str) -> None:
    outcome, _ = run(custom(factory))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("factory", [*STRUCTURED, "words_only", "mlp"])
def test_only_matrices_of_finite_floats_change(factory: str, batch_size: int) -> None:
    built = build(factory, batch_size=batch_size)
    first = batches.find_tensors([built.batches[0].args, built.batches[0].kwargs])
    for batch in (built.batches[1], built.unseen):
        for before, after in zip(
            first, batches.find_tensors([batch.args, batch.kwargs]), strict=True
        ):
            free = before.is_floating_point() and before.dim() > 1 and bool(before.isfinite().all())
            assert before is not after
            assert free or torch.equal(before, after)


@pytest.mark.parametrize(
    ("factory", "origin"),
    [("mlp", "mixed"), ("graph_with_edges", "mixed"), ("words_only", "timed")],
)
def test_origin_of_the_batch_for_the_check_of_one_that_was_given(factory: str, origin: str) -> None:
    assert build(factory).unseen_origin == origin


def test_single_sample_is_mixed_within_itself() -> None:
    built = build("mlp", batch_size=1)
    assert built.unseen_origin == "mixed"
    assert not torch.equal(built.unseen.args[0], built.batches[0].args[0])


def test_derived_input_keeps_its_strides_and_its_need_of_a_gradient() -> None:
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    for derived in (batches.roll_samples(images), batches.mix_samples(images)):
        assert derived.stride() == images.stride()
        assert derived.is_leaf
        assert derived.requires_grad


def test_two_batches_are_timed_and_the_first_is_mixed_for_the_check() -> None:
    built = build("two_batches")
    assert (len(built.batches), built.num_sizes, built.unseen_origin) == (2, 2, "mixed")
    first, second = (batch.args[0] for batch in built.batches)
    assert not torch.equal(second, first.roll(1, 0))
    assert torch.equal(built.unseen.args[0], batches.mix_samples(first))


def test_last_of_three_or_more_batches_is_kept_for_the_check() -> None:
    built = build("four_batches")
    assert [int(batch.kwargs["input"][0, 0]) for batch in built.batches] == [0, 1, 2]
    assert int(built.unseen.kwargs["input"][0, 0]) == 3
    assert (built.num_sizes, built.unseen_origin) == (3, "given")


@pytest.mark.compile
def test_several_batches_train() -> None:
    for factory in ("two_batches", "four_batches"):
        outcome, _ = run(custom(factory))
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        assert outcome.process.steps_per_block is not None
        assert outcome.process.steps_per_block % (2 if factory == "two_batches" else 3) == 0


def test_sizes_are_cut_out_of_each_batch() -> None:
    built = build("four_batches", vary={"batch_size": [2, 4]})
    found = [
        (int(batch.kwargs["input"][0, 0]), len(batch.kwargs["input"])) for batch in built.batches
    ]
    assert found == [(0, 2), (0, 4), (1, 2), (1, 4), (2, 2), (2, 4)]
    assert (built.num_sizes, len(built.unseen.kwargs["input"])) == (6, 4)


def test_list_of_tensors_is_one_batch() -> None:
    built = build("list_of_tensors")
    assert len(built.batches[0].args) == 2
    assert built.unseen_origin == "mixed"


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (
            "batches_of_two_shapes",
            "at [0], batch 1 has float32 [4, 16] and batch 2 has float32 [5, 16]",
        ),
        (
            "batches_of_two_formats",
            "at ['x'], batch 1 has float32 [4, 16] and batch 2 has float64 [4, 16]",
        ),
        (
            "batches_of_two_structures",
            "at ['y'], batch 1 has nothing and batch 2 has float32 [4, 16]",
        ),
    ],
)
def test_batches_that_differ_in_more_than_values_are_told_before_the_sweep(
    factory: str, says: str
) -> None:
    found = problem(factory)
    assert found.startswith(f"model.factory=given_inputs:{factory}: ")
    assert "vary.*" in found
    assert says in found


@pytest.mark.parametrize(
    "inputs", [[], [()], [{"x": 1}], [(torch.ones(1),), ("x",)], [(torch.ones(1),), "x"]]
)
def test_inputs_without_tensors_are_refused(inputs: object) -> None:
    with pytest.raises(ValueError, match=r"model\.factory=mine: it must return"):
        custom_models.take_apart((torch.nn.Linear(1, 1), inputs), "mine")


@pytest.mark.parametrize(
    ("factory", "planned", "kind"),
    [
        ("bert_with_labels", "output.loss", "output.loss"),
        ("bert_without_labels", "mean of outputs", "mean of outputs"),
        ("dict_and_loss", batches.OWN, batches.OWN),
        (
            "dict_with_a_loss",
            "output.loss if the model gives one, else mean of outputs",
            "output.loss",
        ),
        (
            "dict_with_losses",
            "output.loss if the model gives one, else mean of outputs",
            "mean of outputs",
        ),
        ("mlp", "output.loss if the model gives one, else mean of outputs", "mean of outputs"),
    ],
)
def test_loss_is_the_one_that_the_plan_names(factory: str, planned: str, kind: str) -> None:
    assert custom_models.examine(custom(factory)) == models.Examined(loss=planned)
    built = build(factory)
    batch = built.batches[0]
    output = built.module(*batch.args, **batch.kwargs)
    loss = built.loss(output, batch)
    assert batches.name_loss(built.loss) == kind
    if kind == "output.loss":
        assert loss is output["loss"]
    elif kind == "mean of outputs":
        assert torch.equal(loss, batches.mean_of_floats(output, batch))


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("scope", ["model", "step"])
def test_model_of_transformers_trains_on_its_own_loss(scope: str) -> None:
    outcome, _ = run(custom("bert_with_labels", compile=Compile(scope=scope)))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.settings["loss"] == "output.loss"


def test_factory_may_use_torchvision() -> None:
    assert not custom_models.examine(custom("needs_torchvision")).problems
    assert build("needs_torchvision").module(torch.randn(1, 3, 32, 32)).shape == (1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sweeper.worker.session", "sweeper.worker.preflight"])
def test_torchvision_can_be_imported_after_what_runs_models(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}, torchvision"], check=True)
