"""torchvision's classification models, by the names of `torchvision.models.list_models()`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torchvision.models

from sweeper.trial import Model
from sweeper.worker.models import Built, cross_entropy, images

IMAGE_SIZES = {"inception_v3": 299}
IMAGE_SIZE = 224
CLASSES = 1000


def names() -> list[str]:
    return list(torchvision.models.list_models(module=torchvision.models))


def build(model: Model, batch_size: int, device: torch.device) -> Built:
    classes = model.num_classes or CLASSES
    arguments: dict[str, Any] = {"weights": None, "num_classes": classes, **model.arguments}
    constructor = torchvision.models.get_model_builder(model.name)
    accepted = inspect.signature(constructor).parameters
    if "image_size" not in arguments and model.image_size and "vit" in model.name and "kwargs" in accepted:
        arguments["image_size"] = model.image_size
    if model.name in ("googlenet", "inception_v3"):
        arguments |= {"aux_logits": False, "init_weights": True}
    with torch.device(device):
        module = torchvision.models.get_model(model.name, **arguments)
    size = IMAGE_SIZES.get(model.name, IMAGE_SIZE)
    return Built(module, images(model, size, classes, batch_size, device), cross_entropy)
