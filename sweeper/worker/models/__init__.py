"""Models: a builder a library, each giving the same thing, a `Built`.

Random weights unless pretrained ones are asked for, random data from a seed. Place in the flow: `session` calls `load`
and then `build`, `step` runs what it gives.
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
from sweeper.worker.failures import UnavailableError

MIXED = 0.1  # the next sample's share in a derived batch
RATES = ("p", "drop_prob", "drop_path_prob", "dropout")
# What constructors and forwards raise for settings that they cannot have.
WHILE_BUILDING = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError)
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
        """Import what the model needs beyond the library itself, and fetch its weights if it has any."""

    def names(self) -> list[str]:
        """Every model name that the library knows."""

    def unavailable(self, model: Model) -> str | None:
        """Why no settings could make this model run here, e.g. a package that is missing; None for others."""

    def problems(self, model: Model) -> list[str]:
        """What is wrong with the settings of a model whose name is right."""

    def build(self, trial: Trial, device: torch.device) -> Built:
        """Construct the trial's model and its batches on `device`."""


def builder(library: str) -> Builder:
    """The builder of a library; only that library is imported."""
    import sweeper.worker.models.guard  # noqa: F401  # before anything imports torchvision

    module: Any = importlib.import_module(f"sweeper.worker.models.{library}_models")
    return module  # type: ignore[no-any-return]


def load(model: Model) -> None:
    """Import and fetch all that `build` will need: that takes seconds, and none of them on the device.

    Raises UnavailableError for a model that cannot run here.
    """
    library = builder(model.library)
    if reason := library.unavailable(model):
        raise UnavailableError(reason)
    library.load(model)


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


def derived(first: Batch) -> tuple[Batch, Batch, Batch]:
    """Three batches where a library gives one: that, the same with its samples moved by one, and a mixture of them."""
    second = each(first, lambda tensor: tensor.roll(1, 0) if tensor.dim() else tensor.clone())
    return first, second, each(first, _mixed)


def _mixed(tensor: torch.Tensor) -> torch.Tensor:
    """Other values within the same range: floats are mixed with the next sample's, whole numbers change their places.

    The next value's where there is one sample only.
    """
    if not tensor.dim():
        return tensor.clone()
    moved = tensor.roll((1, 1), (0, -1)) if tensor.dim() > 1 else tensor.roll(1, 0)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return moved
    return torch.lerp(tensor, moved if tensor.shape[0] == 1 else tensor.roll(1, 0), MIXED)


def batch_of(inputs: Any) -> Batch | None:
    """A batch from one tensor, or a tuple, list or mapping with a tensor in it; None from anything else."""
    if isinstance(inputs, torch.Tensor):
        return Batch(args=(inputs,))
    if isinstance(inputs, Mapping):
        return Batch(kwargs=dict(inputs)) if any(isinstance(item, torch.Tensor) for item in inputs.values()) else None
    if isinstance(inputs, (tuple, list)):
        return Batch(args=tuple(inputs)) if any(isinstance(item, torch.Tensor) for item in inputs) else None
    return None


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
