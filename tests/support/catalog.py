"""The options of `conf/model/` at a size that a test can afford, and one forward of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.config.schema import conf_folder
from sweeper.core.trial import Labels, Model, Trial

SUITES = ("timm", "transformers", "torchbench")
LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_layers",
    "num_decoder_layers",
)  # fmt: skip
VOCABULARY = 1000


def options(*folders: str) -> list[str]:
    """Options of the group `model` as they are typed, those of the suites too; without folders all
    of them.
    """
    root = conf_folder() / "model"
    files = (
        [file for folder in folders for file in (root / folder).glob("*.yaml")]
        if folders
        else root.glob("**/*.yaml")
    )
    return sorted(file.relative_to(root).with_suffix("").as_posix() for file in files)


def model_of(option: str) -> Model:
    """What an option's file says should be built."""
    values: dict[str, Any] = yaml.safe_load(
        Path(conf_folder() / "model" / f"{option}.yaml").read_text()
    )
    known = ("library", "name", "image_size", "sequence_length", "num_classes", "arguments")
    return Model(
        **{"name": values.get("factory"), **{key: values[key] for key in known if key in values}}
    )


def loss_of(option: str) -> Any:
    """Build a model and run one forward and its loss.

    Models of images and diffusion run as they are, on the meta device; those of transformers for
    real, since what they do with positions and labels is only seen there: sequences of full length,
    but one layer of each kind and few tokens. Sweeper's own models run for real and as they are.
    The test is skipped where diffusers is missing.
    """
    import torch

    from sweeper.worker import models

    model = model_of(option)
    if model.library == "diffusers":
        pytest.importorskip("diffusers")
    models.builder(model.library).load(model)
    on_meta = model.library in ("timm", "torchvision", "diffusers")
    small = (
        model
        if on_meta
        else replace(model, arguments=_shrunk(model) if model.library == "transformers" else {})
    )
    trial = Trial(small, 2 if on_meta else 1, Labels(option, "fp32"), device="cpu")
    built = models.build(trial, 0, torch.device("meta" if on_meta else "cpu"))
    batch = built.batches[0]
    with torch.set_grad_enabled(on_meta):
        return built.loss(built.module(*batch.args, **batch.kwargs), batch)


def _shrunk(model: Model) -> dict[str, Any]:
    import transformers

    config = getattr(transformers, model.name).config_class(**model.arguments)
    known = config.to_dict()
    if "attn_layers" in known:  # Reformer's number of layers follows from their kinds
        return {**model.arguments, "attn_layers": ["local", "lsh"]}
    parts = {
        name: {"num_hidden_layers": 1} for name in ("text_config", "vision_config") if name in known
    }
    numbers = [
        known.get(f"{token}_token_id") or 0
        for token in ("pad", "bos", "eos", "sep", "decoder_start")
    ]
    fewer = (
        {"vocab_size": VOCABULARY} if "vocab_size" in known and max(numbers) < VOCABULARY else {}
    )
    return {**model.arguments, **parts, **fewer, **{name: 1 for name in LAYERS if name in known}}
