from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.core.trial import Compile, Labels, Model, Precision, Trial


def test_id_is_the_same_for_equal_content_and_other_labels(trial: Trial) -> None:
    renamed = replace(trial, labels=Labels("another name", "fp32", family="nlp", weight="amp"))
    assert renamed.id == trial.id


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 8},
        {"workload": "inference"},
        {"mode": "reduce-overhead"},
        {"backend": "aot_eager"},
        {"optimizer": "sgd"},
        {"decode_position": 9},
        {"device": "cuda"},
        {"precision": Precision(autocast="auto")},
        {"compile": Compile(options={"epilogue_fusion": False})},
        {"model": Model("timm", "vit_tiny_patch16_224", image_size=64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_id_changes_with_every_axis(trial: Trial, change: dict[str, object]) -> None:
    assert replace(trial, **change).id != trial.id


def test_id_leaves_out_defaults_so_that_a_later_axis_changes_no_old_id(trial: Trial) -> None:
    assert trial.axes() == {
        "model": {"library": "timm", "name": "vit_tiny_patch16_224"},
        "batch_size": 4,
        "device": "cpu",
    }


def test_id_of_a_known_trial_stays_what_it_was(trial: Trial) -> None:
    """Records of earlier sweeps are found by this number."""
    assert trial.id == "e0caae2527ef"


def test_json_round_trip_keeps_everything(trial: Trial) -> None:
    rich = replace(trial, compile=Compile(dynamic=True, options={"triton.cudagraphs": True, "size": 3}))
    assert Trial.from_json(rich.to_json()) == rich


def test_unknown_key_is_refused(trial: Trial) -> None:
    with pytest.raises(ValueError, match="unknown key colour"):
        Trial.from_json({**trial.to_json(), "colour": "red"})


@pytest.mark.parametrize("name", ["a/../../b", "../x", ".hidden", "=1+1", 'a "b" c', "x" * 300, "a\nb", "ünï"])
def test_label_never_leaves_the_folder(trial: Trial, name: str) -> None:
    label = replace(trial, labels=Labels(name, "fp32")).label
    assert label
    assert len(label) <= 100
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert ".." not in label
    assert not label.startswith((".", "-"))


def test_variant_lists_what_has_no_column_and_is_not_default(trial: Trial) -> None:
    assert trial.variant == ""
    changed = replace(
        trial,
        optimizer="sgd",
        compile=Compile(fullgraph=True, options={"triton.cudagraphs": True}),
        labels=replace(trial.labels, overrides="model.image_size=64"),
    )
    assert changed.variant == (
        "model.image_size=64; optimizer=sgd; compile.fullgraph=true; compile.options.triton.cudagraphs=true"
    )
