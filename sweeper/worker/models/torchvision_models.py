"""torchvision's classification models, by the names of `torchvision.models.list_models()`."""

from typing import Any

import torch
import torchvision.models

from sweeper.core.trial import Model, Trial

from . import Built, Examined, build_classifier, try_classifier
from .pretrained import report_unreachable_hub

CLASSES = 1000  # of ImageNet, which every set of weights was trained on


def names() -> list[str]:
    return list(torchvision.models.list_models(module=torchvision.models))


def examine(trial: Trial) -> Examined:
    model = trial.model
    if model.pretrained and model.num_classes not in (None, CLASSES):
        given = f"model.num_classes={model.num_classes}"
        reason = f"torchvision's weights have {CLASSES}; timm's take others"
        return Examined([f"{given}: {reason}"])
    if model.pretrained and model.image_size and _has_positions(model.name):
        weights = f"torchvision's weights of {model.name}"
        return Examined(
            [f"model.image_size={model.image_size}: {weights} are for its own image size"]
        )
    return try_classifier(_make_module, trial)


def load(model: Model) -> None:
    if model.pretrained:
        _make_module(model)


def build(trial: Trial, device: torch.device) -> Built:
    model = trial.model
    with torch.device(device):
        module = _make_module(model)
    size = 299 if model.name == "inception_v3" else 224
    return build_classifier(module, trial, size, model.num_classes or CLASSES, device)


def _make_module(model: Model) -> Any:
    arguments: dict[str, Any] = {}
    if model.pretrained:
        arguments["weights"] = "DEFAULT"
    else:
        arguments["num_classes"] = model.num_classes or CLASSES
        if model.name in ("googlenet", "inception_v3"):  # with two more classifiers along the way
            arguments |= {"aux_logits": False, "init_weights": True}
    if model.image_size and _has_positions(model.name):
        arguments["image_size"] = model.image_size
    with report_unreachable_hub(model):
        module: Any = torchvision.models.get_model(model.name, **{**arguments, **model.arguments})
    if model.pretrained and model.name == "inception_v3":
        # its weights come with the helper; googlenet drops its own
        module.aux_logits, module.AuxLogits = False, None
    return module


def _has_positions(name: str) -> bool:
    """Whether the model has position embeddings, which are built for one image size."""
    return name.startswith("vit_")
