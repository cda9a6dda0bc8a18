"""Builds the model and the batches of a trial (`build`); each library has a builder module here.

Weights are random unless pretrained ones are asked for, and data are random from a seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Protocol

import torch

import sweeper.worker.models.torchvision_without_cuda  # noqa: F401  # before anything imports torchvision
from sweeper.core.libraries import LIBRARIES
from sweeper.core.trial import Model, Trial

from .batches import (
    Batch,
    Change,
    Loss,
    are_equal,
    cast_tensor,
    cross_entropy,
    cut_batches,
    map_tensors,
    mix_samples,
    put_on_device,
    roll_samples,
)
from .decoding import CachedDecoder
from .dropout import silence_dropout
from .formats import convert_to_float8, require_float8, require_format
from .texts import count_tokens

# What constructors and forwards raise for settings that they cannot have.
WHILE_BUILDING = (
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    KeyError,
    IndexError,
    AssertionError,
)


@dataclass(frozen=True)
class Built:
    """A module on its device, batches that follow each other in turn, and one of their shapes kept
    for the check.

    `loss(output, batch)` is a scalar.
    """

    module: torch.nn.Module
    batches: tuple[Batch, ...]
    unseen: Batch
    loss: Loss
    # how many batches in a row differ in their shapes, or were given by the user
    num_sizes: int = 1
    # or given, mixed (of the first batch), timed (the first batch itself)
    unseen_origin: str = "drawn"
    text: str | None = None  # the form in which texts come, of a library that has texts

    def set_back(self) -> None:
        """Have a step begin where the first one did, if the model has a cache that it writes to."""
        if isinstance(self.module, CachedDecoder):
            self.module.set_back()

    def map_batches(self, change: Change) -> Built:
        """The same model with `change` made to every tensor of its batches."""
        batches = tuple(map_tensors(batch, change) for batch in self.batches)
        return replace(self, batches=batches, unseen=map_tensors(self.unseen, change))


@dataclass(frozen=True)
class Examined:
    """What shows of a trial's model before it runs: what is wrong, and a loss that the user should
    know of.
    """

    problems: Sequence[str] = ()
    loss: str | None = None


class Builder(Protocol):
    """The functions of a builder module; `sweeper.core.libraries.LIBRARIES` says which module
    builds which models.
    """

    def names(self) -> list[str] | None:
        """Every model name that the library knows or knew; None where there is no list of them."""

    def examine(self, trial: Trial) -> Examined:
        """Find what is wrong with the settings of a trial's model whose name is right.

        Nothing for a model that no settings could make run here, e.g. because a package is missing:
        `load` says that.
        """

    def load(self, model: Model) -> None:
        """Import and fetch all that `build` will need, which takes seconds and no device.

        Raises UnavailableError for a model that cannot run here.
        """

    def build(self, trial: Trial, device: torch.device) -> Built:
        """Construct the trial's model and its batches on `device`."""


def builder(library: str) -> Builder:
    """Import the builder of a library, and of no other one."""
    return importlib.import_module(LIBRARIES[library].builder)


def build(trial: Trial, seed: int, device: torch.device) -> Built:
    """Build model and data of a trial, in training or evaluation mode, dropout off unless asked
    for, parameters cast.

    Raises EagerError where the parameters are in another format than the precision's,
    UnavailableError where float8 is asked for and is not here, and whatever the library raises.
    """
    if trial.precision.float8:
        require_float8(device)
    torch.manual_seed(seed)
    built = builder(trial.model.library).build(trial, device)
    module = built.module.train(trial.workload == "train")
    if not trial.model.dropout:
        silence_dropout(module)
    for kind, sizes in trial.vary.items():
        batches = cut_batches(built.batches, kind, sizes)
        built = replace(built, batches=batches, num_sizes=len(sizes) * built.num_sizes)
    if trial.model.memory_format == "channels_last":
        built = use_channels_last(built)
    dtype = getattr(torch, trial.precision.parameters)
    if trial.model.cast or dtype != torch.float32:
        cast = partial(cast_tensor, dtype=dtype)
        module._apply(cast)  # type: ignore[no-untyped-call]  # parameters and buffers, in place
        built = built.map_batches(cast)
    require_format(module, dtype)
    if trial.precision.float8:
        return replace(built, module=convert_to_float8(module))
    return built


def use_channels_last(built: Built) -> Built:
    """Put the channels of images and of weights of convolutions innermost. Raises ValueError where
    there are none.
    """
    layout = torch.channels_last
    built.module.to(memory_format=layout)  # type: ignore[call-overload]
    if read_memory_format(built.module) != "channels_last":
        raise ValueError(
            "model.memory_format=channels_last: the model has no convolution of images"
        )
    return built.map_batches(
        lambda tensor: tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor
    )


def read_memory_format(module: torch.nn.Module) -> str:
    """How the weights of two-dimensional convolutions lie in memory."""
    moved = any(
        not parameter.is_contiguous() for parameter in module.parameters() if parameter.dim() == 4
    )
    return "channels_last" if moved else "contiguous"


def tokens_per_step(built: Built) -> float | None:
    """Tokens of a batch without padding, on average; None for models that read something else."""
    if "input_ids" not in built.unseen.kwargs:
        return None
    return fmean(count_tokens(batch.kwargs) for batch in built.batches)


def read_attention(module: torch.nn.Module) -> str | None:
    """The implementation of attention that a Hugging Face configuration chose; None for models
    without one.
    """
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return str(implementation) if implementation else None


def build_classifier(
    module: torch.nn.Module, trial: Trial, image_size: int, classes: int, device: torch.device
) -> Built:
    """A model of classes with random images float32 [batch, 3, size, size] and labels int64
    [batch].

    `image_size` is the model's own, which `model.image_size` overrides.
    """
    size = trial.model.image_size or image_size

    def make_images() -> Batch:
        pixels = torch.randn(trial.batch_size, 3, size, size, device=device)
        labels = torch.randint(classes, (trial.batch_size,), device=device)
        return Batch(args=(pixels,), target=labels)

    return Built(module, (make_images(), make_images()), make_images(), cross_entropy)


def build_from_batches(
    module: torch.nn.Module, given: Sequence[Batch], loss: Loss, device: torch.device
) -> Built:
    """A model with the batches that a library or a user gives; of three or more the last is kept
    for the check.

    Without a third, the check gets the first with its samples mixed. Of a single batch, the second
    has its samples moved by one. Tensors that may carry structure are the same in all of them
    (`batches.may_change`).
    """
    first, *others = (put_on_device(batch, device) for batch in given)
    if len(others) > 1:
        unseen, origin = others.pop(), "given"
    else:
        unseen, origin = map_tensors(first, mix_samples), "mixed"
    if are_equal(first, unseen):
        origin = "timed"
    num_sizes = 1 + len(others)
    timed = (first, *(others or [map_tensors(first, roll_samples)]))
    return Built(module.to(device), timed, unseen, loss, num_sizes, origin)


def try_classifier(make_module: Callable[[Model], torch.nn.Module], trial: Trial) -> Examined:
    """Find out whether a model of images takes the user's arguments and image size, if there are
    any.

    The size is tried on the meta device, where nothing is computed. A model that cannot run there
    with images of its own size either is left to the trial.
    """
    problems, model = [], trial.model
    if model.arguments:
        try:
            make_module(model)
        except WHILE_BUILDING as error:
            problems.append(
                f"model.name={model.name} with model.arguments {dict(model.arguments)}: {error}"
            )
    if not model.image_size:
        return Examined(problems)
    failure = _failure_on_meta(trial, model.image_size)
    if failure and not _failure_on_meta(trial, None):
        reason = (str(failure).strip().splitlines() or ["it is built for other sizes"])[0]
        problems.append(
            f"model.image_size={model.image_size}: {model.library}'s {model.name} cannot take it: "
            f"{reason}"
        )
    return Examined(problems)


def _failure_on_meta(trial: Trial, image_size: int | None) -> Exception | None:
    model = replace(trial.model, pretrained=False, image_size=image_size)
    small = replace(trial, batch_size=2, model=model)
    try:
        built = builder(model.library).build(small, torch.device("meta"))
        built.module(*built.unseen.args)
    except WHILE_BUILDING as error:
        return error
    return None
