"""torchvision's classification models, by the names of `torchvision.models.list_models()`."""

from __future__ import annotations

from typing import Any

import torch
import torchvision.models

from sweeper.trial import Model
from sweeper.worker.models import Built, cross_entropy, images, problems_of_building

IMAGE_SIZES = {"inception_v3": 299}
IMAGE_SIZE = 224
CLASSES = 1000


def names() -> list[str]:
    return list(torchvision.models.list_models(module=torchvision.models))


def problems(model: Model) -> list[str]:
    return problems_of_building(lambda: _module(model), model)


def load(model: Model) -> None:
    """Everything is imported with the library."""


def build(model: Model, batch_size: int, device: torch.device) -> Built:
    with torch.device(device):
        module = _module(model)
    size = IMAGE_SIZES.get(model.name, IMAGE_SIZE)
    first, second, unseen = images(model, size, model.num_classes or CLASSES, batch_size, device)
    return Built(module, (first, second), unseen, cross_entropy)


def _module(model: Model) -> torch.nn.Module:
    arguments: dict[str, Any] = {"weights": None, "num_classes": model.num_classes or CLASSES}
    if model.image_size and model.name.startswith("vit_"):
        arguments["image_size"] = model.image_size  # its position embeddings are built for one size
    if model.name in ("googlenet", "inception_v3"):
        arguments |= {"aux_logits": False, "init_weights": True}
    module: torch.nn.Module = torchvision.models.get_model(model.name, **{**arguments, **model.arguments})
    return module
