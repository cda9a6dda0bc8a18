from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.core.launch import TORCHRUN, Launch
from sweeper.core.serialization import from_json, to_json
from sweeper.core.trial import (
    OF_COMPILING,
    Compile,
    Labels,
    Model,
    Precision,
    Text,
    Trial,
    name_module,
    name_variants,
)


def test_id_is_the_same_for_equal_content_and_other_labels(trial: Trial) -> None:
    renamed = replace(
        trial, labels=Labels("another name", "fp32", family="nlp", weight="amp", total_steps=9)
    )
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


def test_a_training_in_several_processes_is_another_experiment(trial: Trial) -> None:
    ddp = replace(trial, parallel="ddp", parallel_devices=2)
    sharded, more = replace(ddp, parallel="fsdp2"), replace(ddp, parallel_devices=4)
    trials = trial, ddp, sharded, more
    assert len({one.id for one in trials}) == len({one.variant for one in trials}) == 4
    assert len({one.key_without(*OF_COMPILING) for one in trials}) == 4
    assert sharded.variant == "parallel=fsdp2; parallel.devices=2"
    assert [one.samples_per_step for one in trials] == [4, 8, 8, 16]
    assert [replace(one, device="cuda").num_devices for one in trials] == [1, 2, 2, 4]
    assert (more.num_devices, more.has_loop, trial.has_loop) == (1, True, False)
    assert more.launch == Launch(TORCHRUN, ("--nproc-per-node", "4"), 4)


def test_json_round_trip_keeps_everything(trial: Trial) -> None:
    rich = replace(
        trial, compile=Compile(dynamic=True, options={"triton.cudagraphs": True, "size": 3})
    )
    assert from_json(Trial, to_json(rich)) == rich


def test_unknown_key_is_refused(trial: Trial) -> None:
    with pytest.raises(ValueError, match="unknown key colour"):
        from_json(Trial, {**to_json(trial), "colour": "red"})


@pytest.mark.parametrize(
    "name", ["a/../../b", "../x", ".hidden", "=1+1", 'a "b" c', "x" * 300, "a\nb", "ünï"]
)
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
        "model.image_size=64; optimizer=sgd; compile.fullgraph=true; "
        "compile.options.triton.cudagraphs=true"
    )


def test_variant_has_every_axis_that_has_no_column(trial: Trial) -> None:
    labels = replace(trial.labels, preset="fast", overrides="model.image_size=64")
    changed = replace(
        trial,
        labels=labels,
        workload="inference",
        optimizer_impl="fused",
        cudnn_benchmark=True,
        text=Text(lengths=tuple(range(1, 10))),
        vary={"batch_size": (2, 4)},
        python="/other/python",
        compile=Compile(options={"b": "text", "a": 1}, memory_budget=0.5),
    )
    assert changed.variant == (
        "preset=fast; model.image_size=64; optimizer=adam; optimizer.impl=fused; "
        "text.lengths=[1,2,3,4,5,6,7,8,...] (9); cudnn_benchmark=true; "
        "compile.options.a=1; compile.options.b=text; compile.memory_budget=0.5; "
        "vary.batch_size=2,4; worker.python=/other/python"
    )
    assert replace(trial, workload="inference", optimizer="none").variant == ""
    assert Text(lengths=tuple(range(8))).describe_lengths() == "[0,1,2,3,4,5,6,7]"


def test_variant_of_a_bundled_rung_names_the_bundle_and_not_its_parts(trial: Trial) -> None:
    rung = replace(
        trial,
        labels=replace(trial.labels, rung="default"),
        optimizer_impl="fused",
        cudnn_benchmark=True,
    )
    assert rung.variant == "free one-liners"
    assert (
        replace(rung, labels=replace(trial.labels, rung="fused")).variant
        == "optimizer.impl=fused; cudnn_benchmark=true"
    )


def test_variant_names_the_position_of_a_decoder_unless_it_is_the_last(trial: Trial) -> None:
    decoder = replace(
        trial,
        workload="decode",
        optimizer="none",
        model=Model("transformers", "x", sequence_length=16),
    )
    assert replace(decoder, decode_position=15).variant == ""
    assert replace(decoder, decode_position=14).variant == "decode.position=14"
    assert replace(trial, decode_position=0).variant == "decode.position=0"


def test_name_has_a_backend_that_is_not_inductor(trial: Trial) -> None:
    assert trial.label == "vit_tiny-train-fp32-default-b4"
    assert replace(trial, backend="aot_eager").label == "vit_tiny-train-fp32-default-aot_eager-b4"
    assert replace(trial, mode="eager", backend=None).label == "vit_tiny-train-fp32-eager-b4"


def test_name_of_a_rung_says_which_one_it_is(trial: Trial) -> None:
    eager = replace(trial, mode="eager", backend=None)
    names = [
        replace(eager, labels=replace(trial.labels, rung=rung)).label
        for rung in ("eager", "channels_last")
    ]
    assert names == [
        "vit_tiny-train-fp32-rung-eager-b4",
        "vit_tiny-train-fp32-rung-channels_last-b4",
    ]


def test_sizes_that_vary_keep_their_share_of_the_batch(trial: Trial) -> None:
    varied = replace(trial, batch_size=32, vary={"batch_size": (8, 32, 1), "image_size": (32, 64)})
    halved = varied.replace_batch_size(16)
    assert (halved.batch_size, halved.vary) == (
        16,
        {"batch_size": [4, 16, 1], "image_size": (32, 64)},
    )
    assert varied.samples_per_step == pytest.approx(41 / 3)
    assert trial.replace_batch_size(2) == replace(trial, batch_size=2)
    assert trial.samples_per_step == 4


@pytest.mark.parametrize(
    ("scope", "expected"), [("model", False), ("loss", False), ("step", True), ("optimizer", True)]
)
def test_which_scopes_compile_the_optimizer(scope: str, expected: bool) -> None:
    assert Compile(scope=scope).has_optimizer is expected


def test_what_a_step_is_stands_in_the_names_where_trials_differ_in_it(trial: Trial) -> None:
    language = replace(trial, model=Model("transformers", "x"), text=Text("packed"))
    dropped = replace(language, model=replace(language.model, dropout=True))
    assert name_variants([trial, trial]) == ["", ""]
    assert name_variants([language, dropped]) == ["model.dropout=false", "model.dropout=true"]
    unlabelled = replace(language, workload="inference", text=Text("packed", labels=False))
    assert language.step == ("model.dropout=false", "text=packed")
    assert unlabelled.step == ("", "text=packed")
    assert replace(unlabelled, text=Text("packed")).step == ("", "text=packed; text.labels=true")
    assert replace(language, workload="decode").step == ("", "")
    assert name_variants([language, replace(language, text=Text("full"))]) == [
        "text=packed",
        "text=full",
    ]


def test_only_equal_models_share_a_key() -> None:
    one, other = (
        Model("timm", "x", arguments=arguments)
        for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert one.key == other.key
    assert one.key != replace(one, cast=True).key


def test_defaults_stay_what_ids_of_stored_records_mean() -> None:
    """An id leaves out what is at its default, so another default would give an old id another
    meaning.
    """
    assert to_json(Trial(Model("timm", "x"), 4, Labels("x", "fp32"))) == {
        "model": {
            "library": "timm", "name": "x", "image_size": None, "sequence_length": None,
            "num_classes": None,
            "dropout": False, "arguments": {}, "memory_format": "contiguous", "pretrained": False,
            "checkpoint": None,
            "cast": False, "attention": None,
        },
        "batch_size": 4,
        "labels": {
            "model": "x", "precision": "fp32", "family": "other", "suite": None, "weight": None,
            "overrides": "",
            "preset": None, "rung": None, "feature": None, "default_id": None, "total_steps": None,
        },
        "workload": "train",
        "precision": {
            "parameters": "float32", "autocast": None, "grad_scaler": False, "tf32": None,
            "float8": False,
        },
        "mode": "default",
        "backend": "inductor",
        "optimizer": "adam",
        "compile": {
            "dynamic": None, "fullgraph": False, "scope": "model", "options": {}, "dynamo": {},
            "functorch": {}, "recompile_limit": None,
            "memory_budget": None,
            "precision_casts": False,
            "wrapper": "inside",
            "start": "local_cache",
        },
        "device": "cuda",
        "python": None,
        "vary": {},
        "optimizer_impl": "default",
        "text": {"form": "none", "lengths": [], "labels": True},
        "decode_position": None,
        "cudnn_benchmark": False,
        "parallel": "none",
        "parallel_devices": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("-m package.train", "package.train"),
        ("-m  train ", "train"),
        ("train.py", None),
        ("-m.py", None),
    ],
)
def test_only_a_path_that_begins_as_for_python_names_a_module(
    path: str, expected: str | None
) -> None:
    assert name_module(path) == expected
