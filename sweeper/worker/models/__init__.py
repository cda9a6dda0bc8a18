"""Models: a builder a library, each giving the same thing, a `Built`.

Random weights unless pretrained ones are asked for, random data from a seed. Place in the flow: `session` calls `load`
and then `build`, `step` runs what it gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

import torch

from sweeper.core.libraries import LIBRARIES
from sweeper.core.trial import Model, Trial
from sweeper.worker.models.batches import CUTS, Batch, Loss, cross_entropy, each, in_format, tensors_of

RATES = ("p", "drop_prob", "drop_path_prob", "dropout")
# What constructors and forwards raise for settings that they cannot have.
WHILE_BUILDING = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError)
WITH_DROPOUT = (torch.nn.MultiheadAttention, torch.nn.RNNBase)  # a float `dropout` of their own


@dataclass(frozen=True)
class Built:
    """A module on its device, batches that follow each other in turn, and one of their shapes kept for the check.

    `loss(output, batch)` is a scalar.
    """

    module: torch.nn.Module
    batches: tuple[Batch, ...]
    unseen: Batch
    loss: Loss
    num_sizes: int = 1  # so many batches in turn differ in their shapes


def classifier(module: torch.nn.Module, batches: tuple[Batch, ...]) -> Built:
    """A model of classes with the first of its batches to step through, the last one for the check."""
    *alternating, unseen = batches
    return Built(module, tuple(alternating), unseen, cross_entropy)


class Builder(Protocol):
    """The functions of a builder module; `sweeper.core.libraries.LIBRARIES` says which module builds which models."""

    def names(self) -> list[str] | None:
        """Every model name that the library knows or knew; None where there is no list of them."""

    def problems(self, trial: Trial) -> list[str]:
        """What is wrong with the settings of a trial's model whose name is right.

        Nothing for a model that no settings could make run here, e.g. because a package is missing: `load` says that.
        """

    def load(self, model: Model) -> None:
        """Import and fetch all that `build` will need, which takes seconds and no device.

        Raises UnavailableError for a model that cannot run here.
        """

    def build(self, trial: Trial, device: torch.device) -> Built:
        """Construct the trial's model and its batches on `device`."""


def builder(library: str) -> Builder:
    """Import the builder of a library, and of no other one."""
    import sweeper.worker.models.torchvision_without_cuda  # noqa: F401  # before anything imports torchvision

    module: Any = importlib.import_module(LIBRARIES[library].builder)
    return module  # type: ignore[no-any-return]


def build(trial: Trial, seed: int, device: torch.device) -> Built:
    """Model and data of a trial, in training or evaluation mode, dropout off unless asked for, parameters cast.

    Raises whatever the library raises.
    """
    torch.manual_seed(seed)
    built = builder(trial.model.library).build(trial, device)
    module = built.module.train(trial.workload == "train")
    if not trial.model.dropout:
        silence_dropout(module)
    for kind, sizes in trial.vary.items():
        built = varied(built, kind, sizes)
    if trial.model.memory_format == "channels_last":
        built = with_channels_last(built)
    dtype = getattr(torch, trial.precision.parameters)
    if dtype == torch.float32:
        return built
    module.to(dtype)
    return with_batches(built, lambda tensor: in_format(tensor, dtype))


def varied(built: Built, kind: str, sizes: Sequence[int]) -> Built:
    """Batches of each size in turn, cut out of those of the largest. Raises ValueError where nothing has that size."""
    cut, full = CUTS[kind], max(sizes)
    batches = tuple(
        each(batch, lambda tensor, size=size: cut(tensor, full, size))  # type: ignore[misc]
        for batch in built.batches
        for size in sizes
    )
    shapes = {tuple(tuple(tensor.shape) for tensor in tensors_of([batch.args, batch.kwargs])) for batch in batches}
    if len(shapes) < len(set(sizes)):
        raise ValueError(f"vary.{kind}: the inputs of this model have no {kind.replace('_', ' ')} of {full} to vary")
    return replace(built, batches=batches, num_sizes=len(sizes))


def with_channels_last(built: Built) -> Built:
    """Weights of convolutions and images with the channels innermost. Raises ValueError where there are none."""
    built.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if memory_format(built.module) != "channels_last":
        raise ValueError("model.memory_format=channels_last: the model has no convolution of images")

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return with_batches(built, moved)


def with_batches(built: Built, change: Callable[[torch.Tensor], torch.Tensor]) -> Built:
    """The same with `change` made to every tensor of its batches."""
    batches = tuple(each(batch, change) for batch in built.batches)
    return replace(built, batches=batches, unseen=each(built.unseen, change))


def memory_format(module: torch.nn.Module) -> str:
    """How the weights of two-dimensional convolutions lie in memory."""
    weights = [parameter for parameter in module.parameters() if parameter.dim() == 4]
    moved = [weight for weight in weights if not weight.is_contiguous()]
    return "channels_last" if moved else "contiguous"


def tokens_per_step(built: Built) -> float | None:
    """Tokens of a batch, on average; None for models that read something else."""
    texts = [batch.kwargs["input_ids"] for batch in built.batches if "input_ids" in batch.kwargs]
    return fmean(text.numel() for text in texts) if texts else None


def attention_of(module: torch.nn.Module) -> str | None:
    """The implementation of attention that a Hugging Face configuration chose; None for models without one."""
    found = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return str(found) if found else None


def silence_dropout(module: torch.nn.Module) -> None:
    """Set every rate of dropout, drop-path and stochastic depth in the module tree to 0."""
    for child in module.modules():
        name = type(child).__name__.lower()
        if "drop" in name or "stochasticdepth" in name or isinstance(child, WITH_DROPOUT):
            for rate in RATES:
                if isinstance(getattr(child, rate, None), float):
                    setattr(child, rate, 0.0)


def problems_of_building(construct: Callable[[], object], model: Model) -> list[str]:
    """Whether a constructor takes the user's arguments; without any there is nothing to try."""
    if not model.arguments:
        return []
    try:
        construct()
    except WHILE_BUILDING as error:
        return [f"model.name={model.name} with model.arguments {dict(model.arguments)}: {error}"]
    return []


def problems_of_image_size(construct: Callable[[Model, torch.device], Built], model: Model) -> list[str]:
    """Whether a model takes images of the size that the user set, tried on the meta device, where nothing is computed.

    A model that cannot run there with images of its own size either is left to the trial.
    """
    if not model.image_size:
        return []
    own = replace(model, image_size=None)
    error = _failure_on_meta(construct, model)
    if error is None or _failure_on_meta(construct, own) is not None:
        return []
    reason = (str(error).strip().splitlines() or ["it is built for other sizes"])[0]
    return [f"model.image_size={model.image_size}: {model.library}'s {model.name} cannot take it: {reason}"]


def _failure_on_meta(construct: Callable[[Model, torch.device], Built], model: Model) -> Exception | None:
    try:
        built = construct(replace(model, pretrained=False), torch.device("meta"))
        built.module(*built.unseen.args)
    except WHILE_BUILDING as error:
        return error
    return None
