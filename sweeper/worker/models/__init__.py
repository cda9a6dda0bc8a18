"""Models: a builder a library, each giving the same thing, a `Built`.

Random weights, random data from a seed, no download. Place in the flow: `session` calls `build`, `step` runs it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

import torch

from sweeper.trial import Model, Trial

RATES = ("p", "drop_prob", "drop_path_prob", "dropout")
WITH_DROPOUT = (torch.nn.MultiheadAttention, torch.nn.RNNBase)  # a float `dropout` of their own

Loss = Callable[[Any, "Batch"], torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """Inputs of one step: what the module is called with, and what its output is compared with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: torch.Tensor | None = None


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


class Builder(Protocol):
    """What a module under `models/` offers."""

    def load(self, model: Model) -> None:
        """Import what the model needs beyond the library itself."""

    def names(self) -> list[str]:
        """Every model name that the library knows."""

    def problems(self, model: Model) -> list[str]:
        """What is wrong with the settings of a model whose name is right."""

    def build(self, model: Model, batch_size: int, device: torch.device) -> Built:
        """Construct the model and its batches on `device`."""


def builder(library: str) -> Builder:
    """The builder of a library; only that library is imported."""
    import sweeper.worker.models.guard  # noqa: F401  # before anything imports torchvision

    module: Any = importlib.import_module(f"sweeper.worker.models.{library}_models")
    return module  # type: ignore[no-any-return]


def load(model: Model) -> None:
    """Import all that `build` will need: that takes seconds, and none of them on the device."""
    builder(model.library).load(model)


def build(trial: Trial, seed: int, device: torch.device) -> Built:
    """Model and data of a trial, in training or evaluation mode, dropout off unless asked for, parameters cast.

    Raises whatever the library raises.
    """
    torch.manual_seed(seed)
    built = builder(trial.model.library).build(trial.model, trial.batch_size, device)
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


def _first(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[:size].contiguous() if tensor.dim() and tensor.shape[0] == full else tensor


def _second(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[:, :size].contiguous() if tensor.dim() > 1 and tensor.shape[1] == full else tensor


def _sides(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[..., :size, :size].contiguous() if tuple(tensor.shape[-2:]) == (full, full) else tensor


# [batch, ...], tokens [batch, sequence], images [batch, channels, height, width]
CUTS = {"batch_size": _first, "sequence_length": _second, "image_size": _sides}


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
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        return [f"model.name={model.name} with model.arguments {dict(model.arguments)}: {error}"]
    return []


def cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Classification loss of logits [batch, classes] against class numbers int64 [batch]."""
    assert batch.target is not None
    return torch.nn.functional.cross_entropy(output, batch.target)


def mean_of_floats(output: Any, batch: Batch) -> torch.Tensor:  # noqa: ARG001  # the same shape as every loss
    """The mean over every floating-point tensor in the output, whatever its structure."""
    tensors = [item for item in tensors_of(output) if item.is_floating_point()]
    if not tensors:
        raise ValueError("the model's output holds no floating-point tensor; give a loss_fn")
    return torch.stack([_at_least_float32(tensor).mean() for tensor in tensors]).mean()


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Every tensor in tuples, lists, dicts, dataclasses and what is registered with torch's pytree, in order."""
    found: list[torch.Tensor] = []
    for leaf in torch.utils._pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for entry in dataclasses.fields(leaf):
                found += tensors_of(getattr(leaf, entry.name))
    return found


def images(model: Model, size: int, classes: int, batch_size: int, device: torch.device) -> tuple[Batch, ...]:
    """Three batches of random images float32 [batch, 3, size, size] with random labels int64 [batch]."""
    side = model.image_size or size

    def batch() -> Batch:
        pixels = torch.randn(batch_size, 3, side, side, device=device)
        return Batch(args=(pixels,), target=torch.randint(classes, (batch_size,), device=device))

    return batch(), batch(), batch()


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its floating-point tensors in another number format."""
    return each(batch, lambda tensor: in_format(tensor, dtype))


def in_format(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats in another number format, complex numbers in that of its pairs, the rest as it is."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def each(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The batch with `change` made to every tensor in it."""

    def changed(item: Any) -> Any:
        return change(item) if isinstance(item, torch.Tensor) else item

    tree_map = torch.utils._pytree.tree_map
    return Batch(tree_map(changed, batch.args), tree_map(changed, dict(batch.kwargs)), changed(batch.target))


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
