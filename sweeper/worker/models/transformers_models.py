"""Hugging Face models, built from the default configuration of their class with random weights.

`model.arguments` changes the configuration. The loss is the model's own, from random labels.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from sweeper.errors import nearest
from sweeper.trial import Model
from sweeper.worker.models import Batch, Built, mean_of_floats

SEQUENCE_LENGTH = 128


def names() -> list[str]:
    """Model classes; their modules are not imported for this."""
    return [
        name
        for name in dir(transformers)
        if not name.startswith(("TF", "Flax", "Auto")) and ("For" in name or name.endswith(("Model", "LMHeadModel")))
    ]


def problems(model: Model) -> list[str]:
    """A class without a text model, and settings that its configuration does not have (it would take them silently)."""
    config_class = getattr(getattr(transformers, model.name), "config_class", None)
    config = config_class() if config_class else None
    if config is None or not hasattr(config.get_text_config(), "vocab_size"):
        return [f"model.name={model.name}: not a model that reads tokens, which is all that is fed here"]
    known = config.to_dict()
    return [
        f"model.arguments.{key}: {type(config).__name__} has no such setting; {nearest(key, known)}"
        for key in model.arguments
        if key not in known
    ]


def load(model: Model) -> None:
    """Classes are imported when they are first asked for."""
    getattr(transformers, model.name)


def build(model: Model, batch_size: int, device: torch.device) -> Built:
    model_class = getattr(transformers, model.name)
    config = model_class.config_class(**model.arguments)
    if model.num_classes:
        config.num_labels = model.num_classes
    config.use_cache = False
    if not model.dropout:
        _silence_dropout(config)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # sequence classification heads ask for one
    with torch.device(device):
        module = model_class(config)
    length = model.sequence_length or SEQUENCE_LENGTH
    first, second, unseen = (_batch(model.name, config, batch_size, length, device) for _ in range(3))
    has_loss = "labels" in first.kwargs or "start_positions" in first.kwargs
    return Built(module, (first, second), unseen, _own_loss if has_loss else mean_of_floats)


def _batch(name: str, config: Any, batch_size: int, length: int, device: torch.device) -> Batch:
    """input_ids int64 [batch, sequence], and the labels that the head wants."""
    vocabulary = config.get_text_config().vocab_size

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, device=device)

    inputs = {"input_ids": integers(vocabulary, batch_size, length)}
    if name.endswith(("MaskedLM", "CausalLM", "ConditionalGeneration", "LMHeadModel")):
        inputs["labels"] = integers(vocabulary, batch_size, length)
    elif name.endswith("SequenceClassification"):
        inputs["labels"] = integers(config.num_labels, batch_size)
    elif name.endswith("TokenClassification"):
        inputs["labels"] = integers(config.num_labels, batch_size, length)
    elif name.endswith("QuestionAnswering"):
        inputs |= {"start_positions": integers(length, batch_size), "end_positions": integers(length, batch_size)}
    return Batch(kwargs=inputs)


def _own_loss(output: Any, batch: Batch) -> torch.Tensor:  # noqa: ARG001  # the labels went into the model
    loss: torch.Tensor = output.loss
    return loss


def _silence_dropout(config: Any) -> None:
    """Functional dropout reads its rate from the configuration or one nested in it, under a dozen names."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            _silence_dropout(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
