"""What a rung makes of a trial; which trials `experiment=ladder` makes of a model is in
tests/config/test_ladder.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import make_trial

from sweeper.core.backends import GRAPHED
from sweeper.core.ladder import (
    RUNGS,
    climb,
    explain_not_by_hand,
    explain_not_for,
    list_eager_variants,
)
from sweeper.core.trial import Compile, Model, Trial

CNN, VIT = make_trial("resnet50"), make_trial("vit_b16", family="vit")
LANGUAGE = replace(
    make_trial("bert_base", family="nlp"), model=Model("transformers", "BertForMaskedLM")
)
IMAGES = make_trial("convnext_tiny", family="other")  # of a library of images
ONE_LINERS = ("channels_last", "fused", "cudnn_benchmark")


def has(trial: Trial) -> tuple[bool, bool, bool]:
    """Which of the one-liners a trial has."""
    return (
        trial.model.memory_format == "channels_last",
        trial.optimizer_impl == "fused",
        trial.cudnn_benchmark,
    )


@pytest.mark.parametrize(
    ("rung", "one_liners", "mode", "backend"),
    [
        ("eager", (False, False, False), "eager", None),
        ("channels_last", (True, False, False), "eager", None),
        ("fused", (True, True, False), "eager", None),
        ("cudnn_benchmark", (True, True, True), "eager", None),
        ("graphed", (True, True, True), "default", "graphed"),
        ("default", (True, True, True), "default", "inductor"),
        ("reduce-overhead", (True, True, True), "reduce-overhead", "inductor"),
        ("max-autotune", (True, True, True), "max-autotune", "inductor"),
    ],
)
def test_a_rung_has_the_one_liners_of_those_before_it(
    rung: str, one_liners: tuple[bool, ...], mode: str, backend: str | None
) -> None:
    plain = replace(CNN, compile=Compile(fullgraph=True))
    trial = climb(plain, rung)
    assert (has(trial), trial.mode, trial.backend, trial.labels.rung) == (
        one_liners,
        mode,
        backend,
        rung,
    )
    assert trial.compile == (plain.compile if backend == "inductor" else Compile())


def test_what_does_not_apply_is_left_out_of_later_rungs_but_not_of_its_own() -> None:
    assert has(climb(VIT, "max-autotune")) == (False, True, False)
    assert has(climb(VIT, "channels_last")) == (True, False, False)
    assert has(climb(replace(CNN, optimizer="none"), "default")) == (True, False, True)
    assert has(climb(replace(CNN, device="cpu"), "default")) == (True, True, False)


def test_the_variant_names_the_memory_format_of_rungs_that_show_it_alone() -> None:
    plain = replace(CNN, labels=replace(CNN.labels, overrides="model.image_size=64"))
    assert (
        climb(plain, "channels_last").labels.overrides
        == "model.image_size=64; model.memory_format=channels_last"
    )
    assert climb(CNN, "channels_last").labels.overrides == "model.memory_format=channels_last"
    assert climb(plain, "default").labels.overrides == "model.image_size=64"
    assert climb(CNN, "eager").labels.overrides == ""


@pytest.mark.parametrize(
    ("trial", "rungs"),
    [
        (CNN, ["eager", *ONE_LINERS, "graphed"]),
        (IMAGES, ["eager", *ONE_LINERS, "graphed"]),
        (make_trial(family="diffusion"), ["eager", *ONE_LINERS, "graphed"]),
        (VIT, ["eager", "fused", "graphed"]),
        (LANGUAGE, ["eager", "fused", "graphed"]),
        (
            replace(LANGUAGE, labels=replace(LANGUAGE.labels, family="other")),
            ["eager", "fused", "graphed"],
        ),
        (replace(CNN, device="cpu"), ["eager", "channels_last", "fused"]),
        (replace(CNN, optimizer="none"), ["eager", "channels_last", "cudnn_benchmark", "graphed"]),
        (replace(CNN, vary={"batch_size": (8, 32)}), ["eager", *ONE_LINERS]),
    ],
)
def test_rungs_without_a_compiler_that_apply(trial: Trial, rungs: list[str]) -> None:
    assert list_eager_variants(trial) == rungs


def test_every_mode_of_the_compiler_applies_to_every_trial() -> None:
    hard = replace(
        LANGUAGE, device="cpu", optimizer="none", workload="decode", vary={"batch_size": (8, 32)}
    )
    assert [rung for rung in RUNGS if explain_not_for(hard, rung) is None] == [
        "eager", "default", "reduce-overhead", "max-autotune",
    ]  # fmt: skip


@pytest.mark.parametrize("workload", ["prefill", "decode"])
def test_a_cache_cannot_be_recorded_by_hand(workload: str) -> None:
    assert "moves the cache" in str(explain_not_by_hand(make_trial(workload=workload), GRAPHED))
