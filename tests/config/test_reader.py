from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_repository import IConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from sweeper.config.grid import make_repository, split_off_hydra
from sweeper.config.reader import GridPoint, name_factory
from sweeper.config.reference import read_keys
from sweeper.config.schema import conf_folder
from sweeper.core.errors import ConfigError
from sweeper.core.libraries import LIBRARIES
from sweeper.core.trial import CACHED, MODES, Precision, Text, name_variants
from sweeper.sweep import hydra_app

# those of the named models are in test_catalog
OPTIONS = sorted(
    (path.parent.name, path.stem)
    for path in conf_folder().glob("*/*.yaml")
    if path.parent.name != "experiment" and (path.parent.name != "model" or path.stem in LIBRARIES)
)

LLAMA = ("model=transformers", "model.name=LlamaForCausalLM", "model.sequence_length=64")


def search(folder: Path | None) -> list[str]:
    return [f"hydra.searchpath=[file://{folder}]"] if folder else []


@cache
def read_files(folder: Path | None) -> IConfigRepository:
    """The files of options, which take as long to read as a configuration to compose."""
    loader = GlobalHydra.instance().config_loader()
    return make_repository(
        loader, loader.load_configuration("config", search(folder), RunMode.RUN).hydra
    )


def point(*overrides: str, gpu: bool = False, folder: Path | None = None) -> GridPoint:
    own = search(folder)
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        cfg = compose("config", ["sweep=test", *own, *overrides], return_hydra_config=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hydra_app, "visible_gpus", lambda: ("a GPU",) if gpu else ())
            return hydra_app.read_point(split_off_hydra(cfg, overrides), read_files(folder))


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda value: value)
def test_every_option_composes_into_a_trial(
    group: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()  # of the example of model=script
    monkeypatch.chdir(tmp_path)
    extra = [LIBRARIES[option].example] if group == "model" and option in LIBRARIES else []
    extra += LLAMA if option in CACHED else ()
    assert point(f"{group}={option}", *extra).trial.id


@pytest.mark.parametrize(
    "path", sorted(conf_folder().glob("**/*.yaml")), ids=lambda path: path.stem
)
def test_every_option_begins_with_a_command_that_uses_it(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# python -m sweeper ")


def test_inspection_is_a_setting_and_no_axis() -> None:
    plain, inspected = point("model=resnet18"), point("model=resnet18", "inspect=true")
    assert (plain.settings.inspect, inspected.settings.inspect) == (False, True)
    assert plain.trial.id == inspected.trial.id


def test_modes_of_the_groups_are_those_of_a_trial() -> None:
    assert {option for group, option in OPTIONS if group == "mode"} == set(MODES)


def test_labels_hold_the_names_of_the_options() -> None:
    labels = point("model=vit_b16", "precision=amp").trial.labels
    assert (labels.model, labels.precision, labels.family, labels.weight) == (
        "vit_b16",
        "amp",
        "vit",
        "amp",
    )


def test_generic_model_is_called_by_the_name_that_the_library_has() -> None:
    trial = point("model=timm", "model.name=convnext_tiny", "model.image_size=64").trial
    assert (trial.labels.model, trial.variant) == ("convnext_tiny", "model.image_size=64")


def test_named_option_and_generic_model_are_the_same_experiment() -> None:
    named = point("model=vit_b16", "batch_size=4").trial
    generic = point("model=timm", "model.name=vit_base_patch16_224", "batch_size=4").trial
    assert named.id == generic.id


def test_mode_eager_has_neither_backend_nor_options() -> None:
    trial = point("mode=eager", "compile.fullgraph=true", "backend=aot_eager").trial
    assert trial.backend is None
    assert trial.id == point("mode=eager").trial.id


def test_random_weights_leave_the_id_as_it_was_whatever_checkpoint_an_option_names() -> None:
    named = point("model=bert_small").trial
    assert (named.model.pretrained, named.model.checkpoint) == (False, None)
    assert named.variant == ""
    generic = ["model=transformers", "model.name=BertForMaskedLM", "batch_size=32"]
    sizes = {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    assert (
        named.id
        == point(
            *generic, *(f"++model.arguments.{key}={value}" for key, value in sizes.items())
        ).trial.id
    )


def test_pretrained_weights_make_another_trial_with_the_checkpoint_of_its_option() -> None:
    trial = point("model=bert_small", "model.pretrained=true").trial
    assert trial.model.checkpoint == "google/bert_uncased_L-4_H-256_A-4"
    assert trial.variant == "model.pretrained=true"
    assert trial.id != point("model=bert_small").trial.id
    other = point("model=bert_small", "model.pretrained=true", "model.checkpoint=my/bert").trial
    assert other.variant == "model.checkpoint=my/bert; model.pretrained=true"


def test_cast_makes_another_trial_also_of_a_factory() -> None:
    for model in (["model=resnet18"], ["model=custom", "model.factory=a:b"]):
        trial = point(*model, "model.cast=true").trial
        assert (trial.model.cast, trial.variant) == (True, "model.cast=true")
        assert trial.id != point(*model).trial.id


def test_chosen_attention_makes_another_trial_and_the_librarys_choice_none() -> None:
    plain, chosen = (
        point("model=bert_small").trial,
        point("model=bert_small", "model.attention=eager").trial,
    )
    assert (chosen.model.attention, chosen.variant) == ("eager", "model.attention=eager")
    assert chosen.id != plain.id
    assert "attention" not in plain.axes()["model"]
    assert "float8" not in point("precision=bf16").trial.axes()["precision"]


def test_inference_has_no_optimizer() -> None:
    assert (
        point("workload=inference", "optimizer=sgd").trial.id
        == point("workload=inference").trial.id
    )


def test_new_axes_are_axes_and_show_in_the_variant() -> None:
    usual = point("model=resnet18").trial
    for override, shown in {
        "compile.memory_budget=0.5": "compile.memory_budget=0.5",
        "compile.precision_casts=true": "compile.precision_casts=true",
        "compile.scope=optimizer": "compile.scope=optimizer",
        "cudnn_benchmark=true": "cudnn_benchmark=true",
    }.items():
        trial = point("model=resnet18", override, gpu=True).trial
        assert (trial.variant, trial.id == usual.id) == (shown, False)
    eager = point("mode=eager", "compile.memory_budget=0.5", "compile.precision_casts=true").trial
    assert eager.id == point("mode=eager").trial.id
    assert point("mode=eager", "cudnn_benchmark=true", gpu=True).trial.cudnn_benchmark


def test_several_processes_are_two_unless_given() -> None:
    usual, ddp = point("model=resnet18").trial, point("model=resnet18", "parallel=ddp").trial
    assert point("model=resnet18", "parallel=none").trial.id == usual.id != ddp.id
    assert point("model=resnet18", "parallel.devices=4").trial == usual
    assert (ddp.parallel, ddp.parallel_devices) == ("ddp", 2)
    assert point("parallel=fsdp2", "parallel.devices=4").trial.parallel_devices == 4


def test_nested_options_are_flattened() -> None:
    options = point(
        "++compile.options.triton.cudagraphs=true", "++compile.options.epilogue_fusion=false"
    ).trial.compile
    assert options.options == {"triton.cudagraphs": True, "epilogue_fusion": False}


def test_precisions_are_what_they_are_called() -> None:
    assert point("precision=fp32").trial.precision == Precision()
    assert point("precision=amp").trial.precision == Precision(autocast="auto", grad_scaler=True)
    assert point("precision=tf32").trial.precision == Precision(tf32=True)
    assert point("precision=bf16").trial.precision == Precision(parameters="bfloat16")


def test_preset_changes_what_precisions_mean_and_is_no_change_of_the_users() -> None:
    fp32, amp = (point("preset=pt2", f"precision={name}").trial for name in ("fp32", "amp"))
    assert fp32.precision == Precision(tf32=True)
    assert amp.precision == Precision(autocast="float16", tf32=True)
    assert (fp32.labels.weight, amp.labels.weight) == ("fp32", "amp")
    assert fp32.variant == amp.variant == "preset=pt2; optimizer=none"
    changed = point("preset=pt2", "precision=amp", "precision.tf32=false").trial
    assert changed.variant == "preset=pt2; precision.tf32=false; optimizer=none"


def test_varied_size_is_an_axis_and_the_largest_is_the_trials() -> None:
    trial = point("model=bert_small", "vary.sequence_length=[16,64,32]").trial
    assert trial.model.sequence_length == 64
    assert trial.variant == "vary.sequence_length=16,64,32"
    batches = point("vary.batch_size=[2,8]").trial
    assert (batches.batch_size, batches.samples_per_step) == (8, 5.0)
    assert batches.replace_batch_size(4).vary == {"batch_size": [1, 4]}
    assert batches.id != point("batch_size=8").trial.id


def test_sequence_length_of_a_transformer_is_128_unless_given() -> None:
    generic = ["model=transformers", "model.name=ModernBertForMaskedLM"]
    assert point(*generic).trial.model.sequence_length == 128
    assert point(*generic, "model.sequence_length=64").trial.model.sequence_length == 64


@pytest.mark.parametrize(
    ("overrides", "position", "variant"),
    [
        (["workload=decode"], 63, "model.sequence_length=64"),
        (
            ["workload=decode", "decode.position=32"],
            32,
            "model.sequence_length=64; decode.position=32",
        ),
        (["workload=prefill", "decode.position=32"], None, "model.sequence_length=64"),
        (["workload=prefill", "vary.sequence_length=[16,64]"], None, "vary.sequence_length=16,64"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_fill_level_is_an_axis_of_decode_alone(
    overrides: list[str], position: int | None, variant: str
) -> None:
    trial = point(*LLAMA, *overrides).trial
    assert trial.decode_position == position
    assert trial.optimizer == "none"
    assert trial.variant.endswith(variant)


@pytest.mark.parametrize(
    ("device", "gpu", "kind"),
    [(None, True, "cuda"), (None, False, "cpu"), ("cuda:1", True, "cuda")],
)
def test_device_of_a_trial_is_its_type(device: str | None, gpu: bool, kind: str) -> None:
    assert point(*([f"device={device}"] if device else []), gpu=gpu).trial.device == kind


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["batch_size=0"], "at least 1"),
        (["model=bert_base", "text.lengths=[3,0]"], "whole numbers of at least 1"),
        (["model=bert_base", "text.lengths=[]"], "whole numbers of at least 1"),
        (["model=bert_base", "text.lengths=[true]"], "whole numbers of at least 1"),
        (["model=bert_base", "text.lengths=no_such_file"], "No such file"),
        (["model=bert_base", "text=full", "text.lengths=[3]"], "take text=padded, packed or words"),
        (["model=bert_base", "text.name=short"], "allowed are auto, padded"),
        (["model=bert_base", "text=padded", "text.lengths=[513,3]"], "the longest has 513 tokens"),
        (["batch_size=-1"], "at least 1"),
        (["device=gpu"], "allowed are cpu, cuda"),
        (["device=cuda:"], "allowed are cpu, cuda"),
        (["device=cpu:1"], "allowed are cpu, cuda"),
        (["model=timm"], "model.name=convnext_tiny"),
        (["model=custom"], "model.factory="),
        (["compile.scope=block"], "allowed are model, step, blocks, optimizer, loss"),
        (["compile.memory_budget=0"], "above 0 and at most 1"),
        (["compile.memory_budget=1.5"], "above 0 and at most 1"),
        (
            ["compile.precision_casts=true", "++compile.options.emulate_precision_casts=false"],
            "are one switch",
        ),
        (["cudnn_benchmark=true", "device=cpu"], "no operation runs in cuDNN"),
        (["model.memory_format=nhwc"], "allowed are contiguous, channels_last"),
        (
            ["model=bert_small", "model.attention=flash"],
            "allowed are sdpa, eager, flash_attention_2, flex_attention",
        ),
        (["precision=float8", "workload=inference"], "is for workload=train"),
        (["optimizer.impl=fast"], "allowed are default, foreach, fused"),
        (["optimizer=none", "optimizer.impl=fused"], "take optimizer=adam"),
        (["measure.clock=cpu"], "allowed are block, step"),
        (["precision.auto=fp16"], "allowed are bfloat16, float16"),
        (["vary.batch_size=[8]"], "two sizes or more"),
        (["vary.batch_size=[8,0]"], "at least 1"),
        (["vary.batch_size=[8,4]", "batch_size=8"], "give one of them"),
        (["vary.batch_size=[8,4]", "vary.image_size=[64,32]"], "one of batch_size, image_size"),
        (["vary.sequence_length=[8,4]"], "allowed are transformers"),
        (["retry=often"], "allowed are failed, changed, none, all"),
        (["measure.rounds=0"], "greater than 0"),
        (
            ["compile.start=mega_cache", "measure.processes=1", "measure.draws=3"],
            "compile.start=mega_cache is for later processes.*take measure.processes=2 or more",
        ),
        (["mode.name=fastest"], "allowed are eager, lite, default"),
        (["precision.weight=0.5"], "allowed are amp, fp32"),
        (["model.image_size=0"], "at least 1"),
        (
            ["model=transformers", "model.name=BertForMaskedLM", "model.pretrained=true"],
            "model.checkpoint=google-bert",
        ),
        (["model=bert_small", "model.checkpoint=x"], "with model.pretrained=true only"),
        (
            ["model=resnet18", "model.pretrained=true", "model.checkpoint=x"],
            "for model.library=transformers",
        ),
        (["model=pointwise", "model.pretrained=true"], "takes no other model settings"),
        (["model=torchbench/dcgan", "model.image_size=64"], "takes no other model settings"),
        ([*LLAMA, "workload=decode", "decode.position=64"], "must be below 64"),
        ([*LLAMA, "workload=decode", "decode.position=0"], "at least 1"),
        (
            [*LLAMA, "workload=decode", "model.sequence_length=null"],
            "needs model.sequence_length=N",
        ),
        ([*LLAMA, "workload=decode", "vary.batch_size=[2,4]"], "a cache of one batch size"),
        ([*LLAMA, "workload=prefill", "vary.batch_size=[2,4]"], "a cache of one batch size"),
        ([*LLAMA, "workload=decode", "vary.sequence_length=[32,64]"], "one token per sequence"),
        (["parallel=ddp", "parallel.devices=null"], "parallel=ddp takes a whole number from 2 on"),
        (["parallel=ddp", "parallel.devices=1"], "parallel.devices=1: parallel=ddp takes a whole"),
        (["parallel.name=fsdp"], "allowed are none, ddp, fsdp2"),
        (["parallel=fsdp2", "inspect=true"], "inspect=true is for parallel=none, this is fsdp2"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_value_that_makes_no_sense_is_answered_with_what_is_allowed(
    overrides: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        point(*overrides)


def test_keys_for_suggestions_are_those_of_the_schema() -> None:
    assert {"batch_size", "compile.scope", "model.name", "measure.rounds"} <= read_keys().keys()


def test_changed_option_shows_in_the_variant_and_labels_do_not() -> None:
    assert (
        point("precision=amp", "precision.tf32=true", "model.family=vit").trial.variant
        == "precision.tf32=true"
    )


def test_variant_comes_from_values_wherever_they_were_set(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "small.yaml").write_text(
        "# @package _global_\nmodel: {image_size: 64}\n"
    )
    assert point("experiment=small", folder=tmp_path).trial.variant == "model.image_size=64"
    assert point("model.pretrained=false", "model.batch_size=4").trial.variant == ""
    assert (
        point("model.cast=True").trial.variant
        == point("model.cast=true").trial.variant
        == "model.cast=true"
    )
    changed = point("model=bert_small", "model.arguments.num_hidden_layers=2").trial
    assert changed.variant == "model.arguments.num_hidden_layers=2"


@pytest.mark.parametrize("override", ["model=[resnet18,resnet50]", "mode=[default,eager]"])
def test_list_of_options_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="give one option"):
        point(override)


@pytest.mark.parametrize(
    "overrides",
    [
        ["++compile.options.x=nan"],
        ["++model.arguments.x=inf"],
        ["precision.grad_scaler=true"],
        ["model=custom", "model.factory=a:b", "model.image_size=64"],
    ],
    ids=lambda value: value[-1],
)
def test_value_that_would_be_lost_or_break_something_is_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError):
        point(*overrides)


STORED_BERT = "b0ba5c46ae4f"  # of bert_base in fp32, as earlier versions ran it on a CPU


def test_the_step_is_the_one_that_people_run_and_the_old_one_can_be_asked_for() -> None:
    bert = point("model=bert_base").trial
    assert (bert.model.dropout, bert.text) == (True, Text("auto"))
    old = point("model=bert_base", "model.dropout=false", "text=none").trial
    assert (old.model.dropout, old.text) == (False, Text())
    assert old.id == STORED_BERT != bert.id
    assert name_variants([old, bert]) == [
        "model.dropout=false; text=none",
        "model.dropout=true; text=auto",
    ]


def test_evaluation_has_neither_dropout_nor_labels() -> None:
    trial = point("model=bert_base", "workload=inference").trial
    assert (trial.model.dropout, trial.text) == (False, Text("auto", labels=False))
    assert (
        point("model=bert_base", "workload=inference", "text.labels=true", "text=none").trial.text
        == Text()
    )


def test_text_is_nothing_to_models_of_images() -> None:
    changed = point("text=padded", "text.lengths=[3]").trial
    assert (changed.text, changed.variant, changed.id) == (Text(), "", point().trial.id)


def test_lengths_of_texts_are_a_list_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("3 4\n5")
    from_file = point("model=bert_base", f"text.lengths={tmp_path / 'lengths'}").trial
    from_list = point("model=bert_base", "text.lengths=[3,4,5]").trial
    assert from_list.variant == "text.lengths=[3,4,5]"
    assert from_list.text.describe_lengths() == "[3,4,5]"
    assert Text("padded", tuple(range(1, 12))).describe_lengths() == "[1,2,3,4,5,6,7,8,...] (11)"
    assert from_file.text.lengths == from_list.text.lengths == (3, 4, 5)
    assert from_file.id == from_list.id


def test_the_figures_of_2022_were_made_without_dropout_and_masks() -> None:
    trial = point("model=bert_base", "precision=amp", "preset=pt2").trial
    assert (trial.model.dropout, trial.text) == (False, Text())


def test_the_last_row_of_a_cache_is_no_variant() -> None:
    decode = ("model=llama_750m", "workload=decode", "precision=bf16")
    assert (
        point(*decode).trial.variant == point(*decode, "decode.position=2047").trial.variant == ""
    )
    assert point(*decode, "decode.position=5").trial.variant == "decode.position=5"


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("mine:build", "mine:build"),
        ("mine.py:build", "mine:build"),
        ("./mine.py:build", "mine:build"),
        ("{here}/sub/../mine.py:build", "mine:build"),
        ("sub/mine.py:build", "sub.mine:build"),
        ("{here}/sub/mine.py:build", "sub.mine:build"),
        ("a.b:build", "a.b:build"),
    ],
)
def test_a_function_of_a_file_is_named_by_its_module(
    in_empty_folder: Path, typed: str, name: str
) -> None:
    (in_empty_folder / "sub").mkdir()
    for file in ("mine.py", "sub/mine.py"):
        Path(file).touch()
    assert name_factory(typed.format(here=in_empty_folder)) == name


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("./mine.py", "name the function too: ./mine.py:build"),
        ("./nope.py:build", "there is no such file in"),
        ("my-own.py:build", "Python cannot import this path"),
        ("../other.py:build", "start sweeper in the folder of the file"),
    ],
)
def test_a_file_that_cannot_be_imported_from_here_is_refused(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, says: str
) -> None:
    here = in_empty_folder / "here"
    here.mkdir()
    for file in (here / "mine.py", here / "my-own.py", in_empty_folder / "other.py"):
        file.touch()
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match=says):
        name_factory(typed)
