"""timm's image models, by the names of `timm.list_models()`."""

from __future__ import annotations

from typing import Any

import timm
import torch

from sweeper.trial import Model
from sweeper.worker.models import Built, cross_entropy, images, problems_of_building


def names() -> list[str]:
    return list(timm.list_models())


def problems(model: Model) -> list[str]:
    return problems_of_building(lambda: _module(model), model)


def load(model: Model) -> None:
    """Everything is imported with the library."""


def build(model: Model, batch_size: int, device: torch.device) -> Built:
    with torch.device(device):
        module = _module(model)
    size = int(module.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    first, second, unseen = images(model, size, module.num_classes, batch_size, device)
    return Built(module, (first, second), unseen, cross_entropy)


def _module(model: Model) -> Any:
    arguments: dict[str, Any] = dict(model.arguments)
    if model.num_classes:
        arguments["num_classes"] = model.num_classes
    if model.image_size and _takes_image_size(model.name):
        arguments["img_size"] = model.image_size
    return timm.create_model(model.name, pretrained=False, **arguments)


def _takes_image_size(name: str) -> bool:
    """Models with position embeddings are built for one image size; convolutional ones refuse the argument."""
    return bool(timm.models.get_pretrained_cfg_value(name, "fixed_input_size"))
