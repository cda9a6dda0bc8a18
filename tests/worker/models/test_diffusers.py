"""Networks of diffusers: as large as published, and trained on the error of the predicted noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalog import model_of

from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker import models
from sweeper.worker.models import Built, builder

pytest.importorskip("diffusers")

SMALL_UNET = {
    "block_out_channels": [32, 64],
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "UpBlock2D"],
}
SMALL = {
    "UNet2DModel": Model("diffusers", "UNet2DModel", image_size=8, arguments=SMALL_UNET),
    "UNet2DModel with labels": Model(
        "diffusers", "UNet2DModel", image_size=8, num_classes=5, arguments=SMALL_UNET
    ),
    "UNet2DConditionModel": Model(
        "diffusers",
        "UNet2DConditionModel",
        image_size=8,
        arguments={
            **SMALL_UNET,
            "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
            "cross_attention_dim": 16,
        },
    ),
    "DiTTransformer2DModel": Model(
        "diffusers",
        "DiTTransformer2DModel",
        image_size=8,
        num_classes=5,
        arguments={"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1},
    ),
}
INPUTS = {
    "UNet2DModel": {"sample", "timestep"},
    "UNet2DModel with labels": {"sample", "timestep", "class_labels"},
    "UNet2DConditionModel": {"sample", "timestep", "encoder_hidden_states"},
    "DiTTransformer2DModel": {"hidden_states", "timestep", "class_labels"},
}


def trial_of(model: Model, **axes: Any) -> Trial:
    return Trial(model, 2, Labels(model.name, "fp32"), device="cpu", **axes)


def build(model: Model, device: str = "cpu", **axes: Any) -> Built:
    return models.build(trial_of(model, **axes), 0, torch.device(device))


@pytest.mark.parametrize(("option", "millions"), [("unet_ddpm", 35.75), ("dit_b2", 147.4)])
def test_option_is_as_large_as_its_network_is_in_diffusers(option: str, millions: float) -> None:
    module = build(model_of(option), "meta").module
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.001)


@pytest.mark.parametrize("name", SMALL)
def test_network_gets_what_it_reads_and_learns_the_noise(name: str) -> None:
    built = build(SMALL[name])
    first, second = built.batches
    assert first.kwargs.keys() == INPUTS[name]
    assert not torch.equal(first.kwargs["timestep"], second.kwargs["timestep"])
    output = built.module(**first.kwargs)
    loss = built.loss(output, first)
    assert loss.item() == pytest.approx((output.sample - first.target).square().mean().item())
    loss.backward()
    trained = [parameter for parameter in built.module.parameters() if parameter.grad is not None]
    assert len(trained) == len(list(built.module.parameters()))


def test_noise_is_in_the_images() -> None:
    batch = build(SMALL["UNet2DModel"]).unseen
    images, noise = batch.kwargs["sample"].flatten(), batch.target.flatten()  # type: ignore[union-attr]
    assert torch.corrcoef(torch.stack([images, noise]))[0, 1] > 0.1


def test_sizes_of_images_vary() -> None:
    built = build(SMALL["UNet2DModel"], vary={"image_size": [8, 4]})
    sides = [batch.kwargs["sample"].shape[-1] for batch in built.batches]
    assert sides == [8, 4, 8, 4]
    small = built.batches[1]
    assert built.loss(built.module(**small.kwargs), small).isfinite()


@pytest.mark.parametrize("dropout", [True, False])
def test_labels_are_dropped_at_random_unless_dropout_is_off(dropout: bool) -> None:
    network = SMALL["DiTTransformer2DModel"]
    model = Model(
        network.library,
        network.name,
        8,
        num_classes=5,
        dropout=dropout,
        arguments=network.arguments,
    )
    rates = {
        module.dropout_prob
        for module in build(model).module.modules()
        if hasattr(module, "dropout_prob")
    }
    assert rates == ({0.1} if dropout else {0.0})


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Model("diffusers", "UNet2DModel"), "give model.image_size"),
        (Model("diffusers", "UNet2DModel", 32, arguments={"layers": 3}), "argument 'layers'"),
        (Model("diffusers", "UNet2DModel", 7, arguments=SMALL_UNET), "Sizes of tensors must match"),
        (Model("diffusers", "UNet2DModel", 32, pretrained=True), "have random weights here"),
        (Model("diffusers", "AuraFlowTransformer2DModel", num_classes=5), "'num_classes'"),
        (Model("diffusers", "FluxTransformer2DModel", 32), "sweeper gives it noisy images"),
    ],
    ids=["no size", "no such argument", "odd size", "weights", "no labels", "other inputs"],
)
def test_check_before_a_sweep_says_what_the_network_cannot_take(model: Model, says: str) -> None:
    (problem,) = builder("diffusers").examine(trial_of(model)).problems
    assert says in problem


def test_networks_of_diffusers_are_known_by_name() -> None:
    names = builder("diffusers").names()
    assert names is not None
    assert {model.name for model in SMALL.values()} < set(names)
    assert not any(name.endswith("Pipeline") for name in names)
