"""timm's image models, by the names of `timm.list_models()` and earlier ones that timm still
knows.
"""

from typing import Any

import timm
import torch

from sweeper.core.trial import Model, Trial

from . import Built, Examined, build_classifier, try_classifier
from .pretrained import report_unreachable_hub


def names() -> list[str]:
    return [
        *timm.list_models(),
        *(name for name, now in timm.models.get_deprecated_models().items() if now),
    ]


def examine(trial: Trial) -> Examined:
    model = trial.model
    if model.pretrained:
        config = timm.models.get_pretrained_cfg(_current(model.name), allow_unregistered=False)
        # somewhere to fetch them from; or the user says where
        if not (config.has_weights or "pretrained_cfg_overlay" in model.arguments):
            return Examined([f"model.pretrained=true: timm has no weights of {model.name}"])
    return try_classifier(_make_module, trial)


def load(model: Model) -> None:
    if model.pretrained:
        _make_module(model)


def build(trial: Trial, device: torch.device) -> Built:
    with torch.device(device):
        module = _make_module(trial.model)
    size = int(module.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    return build_classifier(module, trial, size, module.num_classes, device)


def _make_module(model: Model) -> Any:
    arguments: dict[str, Any] = dict(model.arguments)
    if model.num_classes:
        arguments["num_classes"] = model.num_classes
    # A model with position embeddings is built for one image size; others refuse the argument.
    if model.image_size and timm.models.get_pretrained_cfg_value(
        _current(model.name), "fixed_input_size"
    ):
        arguments["img_size"] = model.image_size
    with report_unreachable_hub(model):
        return timm.create_model(model.name, pretrained=model.pretrained, **arguments)


def _current(name: str) -> str:
    """The name that timm has for the model today."""
    return str(timm.models.get_deprecated_models().get(name) or name)
