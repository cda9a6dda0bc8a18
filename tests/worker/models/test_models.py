"""Builders of models: TorchBench, weights from a hub, image sizes, inputs that a head asks for."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchbench_stand_in

from sweeper.core.serialization import to_json
from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker import models
from sweeper.worker.failures import UnavailableError
from sweeper.worker.models import builder

CPU = torch.device("cpu")


def trial_of(model: Model, batch_size: int = 2, workload: str = "train") -> Trial:
    return Trial(model, batch_size, Labels(model.name, "fp32"), workload=workload, device="cpu")


def problems(model: Model) -> list[str]:
    return list(builder(model.library).examine(trial_of(model)).problems)


def load(model: Model) -> None:
    builder(model.library).load(model)


@pytest.fixture
def torchbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torchbench_stand_in.install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("torchbenchmark")]:
        del sys.modules[name]


@pytest.mark.usefixtures("torchbench")
@pytest.mark.parametrize("name", ["plain", "with_dict"])
def test_model_of_torchbench_is_built_with_three_different_batches(name: str) -> None:
    seeding = torch.manual_seed
    built = models.build(trial_of(Model("torchbench", name), 5), 0, CPU)
    assert torch.manual_seed is seeding
    batches = [*built.batches, built.unseen]
    inputs = [
        torch.utils._pytree.tree_leaves((batch.args, dict(batch.kwargs)))[0] for batch in batches
    ]
    assert {tuple(values.shape) for values in inputs} == {(5, 4)}
    loss = built.loss(built.module(*batches[0].args, **batches[0].kwargs), batches[0])
    assert loss.shape == ()
    assert loss.requires_grad


@pytest.mark.usefixtures("torchbench")
def test_names_of_torchbench_are_its_folders() -> None:
    assert builder("torchbench").names() == sorted(torchbench_stand_in.MODELS)


@pytest.mark.usefixtures("torchbench")
@pytest.mark.parametrize(
    ("name", "batch_size", "workload", "says"),
    [
        ("fixed", 5, "train", "batch_size=8"),
        ("fixed", 8, "inference", "batch_size=2"),
        ("without_training", 2, "train", "Train test is not implemented"),
    ],
)
def test_what_torchbench_does_not_implement_is_unavailable(
    name: str, batch_size: int, workload: str, says: str
) -> None:
    with pytest.raises(UnavailableError, match=says):
        models.build(trial_of(Model("torchbench", name), batch_size, workload), 0, CPU)
    own = 8 if workload == "train" else 2
    other = trial_of(
        Model("torchbench", name), own, "inference" if name == "without_training" else workload
    )
    assert models.build(other, 0, CPU).module


@pytest.mark.usefixtures("torchbench")
def test_package_that_a_model_of_torchbench_misses_is_named() -> None:
    with pytest.raises(
        UnavailableError, match=r"a_package_that_is_not_there.*install.py needs_more"
    ):
        load(Model("torchbench", "needs_more"))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            Model("torchbench", "BERT_pytorch"),
            r"not installed: git clone .*install.py BERT_pytorch",
        ),
        (Model("diffusers", "UNet2DModel"), r"not installed: pip install diffusers"),
        (Model("transformers", "Speech2Text2ForCausalLM"), r"removed in transformers 5.0"),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_model_that_is_not_there_is_unavailable_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, model: Model, says: str
) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    assert not problems(model), "a package that is missing is no wrong setting"
    with pytest.raises(UnavailableError, match=says):
        load(model)


def test_check_before_a_sweep_leaves_models_that_are_not_there_to_their_rows(
    tmp_path: Path,
) -> None:
    from sweeper.worker.preflight import check

    gone = [Model("torchbench", "BERT_pytorch"), Model("transformers", "Speech2Text2ForCausalLM")]
    small = Model("timm", "crossvit_9_240", image_size=64)
    question, answer = tmp_path / "trials.jsonl", tmp_path / "answer.json"
    lines = [json.dumps(to_json(trial_of(model))) for model in (*gone, small)]
    question.write_text("\n".join(lines))
    check(question, answer)
    (problem,) = json.loads(answer.read_text())["problems"]
    assert problem.startswith("model.image_size=64: timm's crossvit_9_240 cannot take it: ")


@pytest.mark.parametrize(
    ("library", "name", "size"),
    [
        ("torchvision", "resnet50", 64),
        ("torchvision", "resnet50", 7),
        ("torchvision", "vit_b_16", 64),
        ("timm", "resnet18", 7),
        ("timm", "vit_tiny_patch16_224", 64),
        ("timm", "jx_nest_base", 64),
    ],
)
def test_any_image_size_that_a_model_can_take_is_taken(library: str, name: str, size: int) -> None:
    model = Model(library, name, image_size=size)
    assert problems(model) == []
    built = builder(library).build(trial_of(model), torch.device("meta"))
    assert built.batches[0].args[0].shape[-1] == size
    assert built.module(*built.batches[0].args).shape == (2, 1000)


@pytest.mark.parametrize(
    ("library", "name", "size"),
    [("torchvision", "alexnet", 7), ("torchvision", "vit_b_16", 65)],
)
def test_image_size_that_a_model_cannot_take_is_told_before_the_sweep(
    library: str, name: str, size: int
) -> None:
    (problem,) = problems(Model(library, name, image_size=size))
    assert problem.startswith(f"model.image_size={size}: {library}'s {name} cannot take it: ")


def test_number_of_classes_changes_the_head() -> None:
    built = builder("torchvision").build(
        trial_of(Model("torchvision", "resnext101_32x8d", num_classes=2)), torch.device("meta")
    )
    assert built.module.fc.out_features == 2


@pytest.fixture
def no_way_to_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, and nobody who listens where the proxy should be."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    # it keeps the proxies of the first call in this process
    monkeypatch.setattr(urllib.request, "_opener", None)


@pytest.mark.usefixtures("no_way_to_a_hub")
def test_hub_of_torchvision_that_cannot_be_reached_makes_a_trial_unavailable() -> None:
    with pytest.raises(
        UnavailableError, match=r"torchvision's resnet18 .*refused; model.pretrained=false"
    ):
        load(Model("torchvision", "resnet18", pretrained=True))


@pytest.mark.parametrize(
    "model",
    [
        Model("timm", "resnet18", pretrained=True),
        Model(
            "transformers",
            "BertForMaskedLM",
            pretrained=True,
            checkpoint="google-bert/bert-base-uncased",
        ),
    ],
    ids=lambda model: model.library,
)
def test_hub_of_hugging_face_that_cannot_be_reached_makes_a_trial_unavailable(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline: the library raises what it does after half a minute of trying, at once."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"cannot be fetched .*model.pretrained=false"):
        load(model)


def test_weights_that_are_on_this_machine_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision.models

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    weights = torchvision.models.get_model_weights("squeezenet1_1").DEFAULT
    known = torchvision.models.squeezenet1_1()
    torch.save(known.state_dict(), tmp_path / "checkpoints" / weights.url.rsplit("/", 1)[1])
    module = models.build(
        trial_of(Model("torchvision", "squeezenet1_1", pretrained=True)), 0, CPU
    ).module
    assert torch.equal(next(module.parameters()), next(known.parameters()))
    random = models.build(trial_of(Model("torchvision", "squeezenet1_1")), 0, CPU).module
    assert not torch.equal(next(random.parameters()), next(known.parameters()))


def test_checkpoint_of_transformers_may_be_a_folder(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    known = transformers.BertForMaskedLM(config)
    known.save_pretrained(tmp_path)
    model = Model(
        "transformers",
        "BertForMaskedLM",
        sequence_length=8,
        pretrained=True,
        checkpoint=str(tmp_path),
    )
    built = models.build(trial_of(model), 0, CPU)
    assert built.module.config.hidden_size == 32
    assert torch.equal(
        built.module.bert.embeddings.word_embeddings.weight,
        known.bert.embeddings.word_embeddings.weight,
    )
    batch = built.batches[0]
    assert torch.isfinite(built.loss(built.module(**batch.kwargs), batch))
    two = models.build(
        trial_of(replace(model, name="BertForSequenceClassification", num_classes=7)), 0, CPU
    )
    assert two.module.classifier.out_features == 7


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Model("timm", "vit_giant_patch14_224", pretrained=True), "has no weights"),
        (Model("torchvision", "resnet18", num_classes=2, pretrained=True), "have 1000"),
        (Model("torchvision", "vit_b_16", image_size=64, pretrained=True), "its own image size"),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_weights_that_there_cannot_be_are_told_before_the_sweep(model: Model, says: str) -> None:
    (problem,) = problems(model)
    assert says in problem


def test_branch_on_the_data_goes_one_way_for_the_first_batch_and_the_other_for_the_check() -> None:
    model = Model("custom", "sweeper.worker.models.examples:control_flow")
    for size in (2, 8):
        built = models.build(trial_of(model, size), 0, CPU)
        signs = [float(batch.args[0][0].sum()) > 0 for batch in (*built.batches, built.unseen)]
        assert signs == [True, False, False]


def test_a_trace_of_the_branch_is_wrong_on_the_batch_of_the_check() -> None:
    built = models.build(
        trial_of(Model("custom", "sweeper.worker.models.examples:control_flow"), 4), 0, CPU
    )
    traced = torch.jit.trace(built.module, built.batches[0].args, check_trace=False)
    with torch.no_grad():
        assert torch.equal(traced(*built.batches[0].args), built.module(*built.batches[0].args))
        assert torch.equal(traced(*built.unseen.args), -built.module(*built.unseen.args))


def test_pointwise_has_something_to_train() -> None:
    built = models.build(
        trial_of(Model("custom", "sweeper.worker.models.examples:pointwise")), 0, CPU
    )
    batch = built.batches[0]
    output = built.module(*batch.args)
    assert torch.equal(output, batch.args[0].sin() + batch.args[1].cos())
    built.loss(output, batch).backward()
    assert built.module.phase.grad.abs().max() > 0


def test_resnet8_is_as_large_as_the_paper_has_it_and_each_parameter_trains() -> None:
    built = models.build(
        trial_of(Model("custom", "sweeper.worker.models.examples:resnet8")), 0, CPU
    )
    batch = built.batches[0]
    output = built.module(*batch.args)
    assert output.shape == (len(batch.args[0]), 10)
    convolutions = [layer for layer in built.module.modules() if isinstance(layer, torch.nn.Conv2d)]
    # and one linear layer
    assert len([layer for layer in convolutions if layer.kernel_size == (3, 3)]) == 7
    built.loss(output, batch).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in built.module.parameters())
