"""Batches: what a step is given, how one is made from another, and losses of what comes out.

Place in the flow: the builders in `models` make them, `timing` lets steps go through them in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sweeper.core.trial import Model

MIXED = 0.1  # the next sample's share in a derived batch
Loss = Callable[[Any, "Batch"], torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """Inputs of one step: what the module is called with, and what its output is compared with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: torch.Tensor | None = None


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


def _first(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[:size].contiguous() if tensor.dim() and tensor.shape[0] == full else tensor


def _second(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[:, :size].contiguous() if tensor.dim() > 1 and tensor.shape[1] == full else tensor


def _sides(tensor: torch.Tensor, full: int, size: int) -> torch.Tensor:
    return tensor[..., :size, :size].contiguous() if tuple(tensor.shape[-2:]) == (full, full) else tensor


# [batch, ...], tokens [batch, sequence], images [batch, channels, height, width]
CUTS = {"batch_size": _first, "sequence_length": _second, "image_size": _sides}
