"""timm's image models, by the names of `timm.list_models()` and earlier ones that timm still knows."""

from __future__ import annotations

from typing import Any

import timm
import torch

from sweeper.core.trial import Model, Trial
from sweeper.worker.models import Built, classifier, problems_of_building, problems_of_image_size
from sweeper.worker.models.batches import images
from sweeper.worker.models.pretrained import from_hub


def names() -> list[str]:
    return [*timm.list_models(), *(name for name, now in timm.models.get_deprecated_models().items() if now)]


def problems(trial: Trial) -> list[str]:
    model = trial.model
    if model.pretrained and not _has_weights(model):
        return [f"model.pretrained=true: timm has no weights of {model.name}"]
    return [*problems_of_building(lambda: _module(model), model), *problems_of_image_size(_built, model)]


def load(model: Model) -> None:
    if model.pretrained:
        _module(model)


def build(trial: Trial, device: torch.device) -> Built:
    return _built(trial.model, device, trial.batch_size)


def _built(model: Model, device: torch.device, batch_size: int = 2) -> Built:
    with torch.device(device):
        module = _module(model)
    size = int(module.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    return classifier(module, images(model, size, module.num_classes, batch_size, device))


def _module(model: Model) -> Any:
    arguments: dict[str, Any] = dict(model.arguments)
    if model.num_classes:
        arguments["num_classes"] = model.num_classes
    if model.image_size and _takes_image_size(model.name):
        arguments["img_size"] = model.image_size
    with from_hub(model):
        return timm.create_model(model.name, pretrained=model.pretrained, **arguments)


def _takes_image_size(name: str) -> bool:
    """Models with position embeddings are built for one image size; convolutional ones refuse the argument."""
    return bool(timm.models.get_pretrained_cfg_value(_current(name), "fixed_input_size"))


def _has_weights(model: Model) -> bool:
    """Whether there is somewhere to fetch them from, or the user said where (`pretrained_cfg_overlay`)."""
    config = timm.models.get_pretrained_cfg(_current(model.name), allow_unregistered=False)
    return config.has_weights or "pretrained_cfg_overlay" in model.arguments


def _current(name: str) -> str:
    """What timm calls the model today."""
    return str(timm.models.get_deprecated_models().get(name) or name)
