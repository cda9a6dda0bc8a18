"""Batches: what a step is given, how one is made from another, and losses of what comes out."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

Loss = Callable[[Any, "Batch"], torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]
OWN, OUTPUT_LOSS, MEAN = "the factory's loss_fn", "output.loss", "mean of outputs"


@dataclass(frozen=True)
class Batch:
    """Inputs of one step: what the module is called with, and what its output is compared with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: torch.Tensor | None = None

    @property
    def inputs(self) -> list[torch.Tensor]:
        """Every tensor that the module is called with, in order."""
        return find_tensors([self.args, self.kwargs])


def cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Classification loss of logits [batch, classes] against class numbers int64 [batch]."""
    assert batch.target is not None
    return torch.nn.functional.cross_entropy(output, batch.target)


def noise_error(output: Any, batch: Batch) -> torch.Tensor:
    """The mean squared error of `output.sample`, the noise that a network of diffusers predicts."""
    assert batch.target is not None
    return torch.nn.functional.mse_loss(output.sample, batch.target)


def mean_of_floats(output: Any, _batch: Batch) -> torch.Tensor:
    """The mean over every floating-point tensor in the output, whatever its structure."""
    return torch.stack([item.mean() for item in _find_floats(output)]).mean()


def weighted_mean_of_floats(output: Any, _batch: Batch) -> torch.Tensor:
    """The same with weights of both signs, by sample and by place in the last dimension, each of a
    size of 0.5 to 1.5.

    Where all weights are equal, a normalisation or a softmax sends back nothing but rounding.
    Weights between 0.5 and 1.5 left ten times as much of it in the gradients of a convolution with
    batch normalisation as these do.
    """
    return torch.stack([_weigh(item).mean() for item in _find_floats(output)]).mean()


def _find_floats(output: Any) -> list[torch.Tensor]:
    tensors = [item for item in find_tensors(output) if item.is_floating_point()]
    if not tensors:
        raise ValueError("the model's output holds no floating-point tensor; give a loss_fn")
    return [item.to(torch.promote_types(item.dtype, torch.float32)) for item in tensors]


def _weigh(values: torch.Tensor) -> torch.Tensor:
    if values.dim() == 0:
        return values
    for dim in {0, values.dim() - 1}:
        count = values.shape[dim]
        # they follow no short pattern, and there are about as many of each
        signs = torch.where((2.4 * torch.arange(count)).cos() > 0, 1.0, -1.0)
        weights = (torch.linspace(0.5, 1.5, count) * signs).to(values)
        values = (values.movedim(dim, -1) * weights).movedim(-1, dim)
    return values


def find_loss(output: Any) -> torch.Tensor | None:
    """The loss that a model computed by itself, as those of transformers do from labels:
    `output.loss`, one number.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    is_loss = isinstance(loss, torch.Tensor) and loss.is_floating_point() and loss.numel() == 1
    return loss if is_loss else None


class OwnLossOrMean:
    """The loss that the model computed by itself, else a mean of its floating-point output.

    `kind` says which of them it is, once a step has run.
    """

    kind: str | None = None

    def __init__(self, mean: Loss = mean_of_floats) -> None:
        self._mean = mean

    def __call__(self, output: Any, batch: Batch) -> torch.Tensor:
        loss, kind = find_loss(output), OUTPUT_LOSS
        if loss is None:
            loss, kind = self._mean(output, batch), MEAN
        if self.kind is None:
            self.kind = kind
        return loss


def name_loss(loss: Loss) -> str | None:
    """What the plan and the record call a loss; None where that shows in the first step."""
    if isinstance(loss, OwnLossOrMean):
        return loss.kind
    names: Mapping[Loss, str] = {
        cross_entropy: "cross-entropy",
        mean_of_floats: MEAN,
        noise_error: "mean squared error",
    }
    return names.get(loss, OWN)


def find_tensors(output: Any) -> list[torch.Tensor]:
    """Every tensor in tuples, lists, dicts, dataclasses and what is registered with torch's pytree,
    in order.
    """
    found = []
    for leaf in torch.utils._pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += find_tensors([getattr(leaf, entry.name) for entry in dataclasses.fields(leaf)])
    return found


def put_on_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch that lies elsewhere; one with a tensor there stays, as its lengths may belong on
    the host.
    """
    if any(tensor.device.type == device.type for tensor in batch.inputs):
        return batch
    return map_tensors(batch, lambda tensor: tensor.to(device))


def may_change(tensor: torch.Tensor) -> bool:
    """Whether other values of the same range mean the same to a model: finite floats with at least
    two dimensions.

    Whole numbers, booleans and vectors may be offsets, edges, lengths or masks; a tensor with
    infinity is a mask.
    """
    floats = tensor.is_floating_point() or tensor.is_complex()
    return floats and is_plain(tensor) and tensor.dim() > 1 and bool(torch.isfinite(tensor).all())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is neither sparse nor nested, and its numbers have at least two bytes or are
    whole.
    """
    # float8, with which next to nothing can be computed
    short = tensor.is_floating_point() and tensor.itemsize < 2
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized or short)


def roll_samples(tensor: torch.Tensor) -> torch.Tensor:
    """The samples moved by one, where the tensor may change; else a copy."""
    return _change_values(tensor, lambda values: values.roll(1, 0))


def mix_samples(tensor: torch.Tensor) -> torch.Tensor:
    """Other values within the same range, where the tensor may change; else a copy.

    Each sample is mixed with the next one, or where there is one sample only, each value with the
    next one.
    """

    def mix(values: torch.Tensor) -> torch.Tensor:
        moved = values.roll((1, 1), (0, -1)) if values.shape[0] == 1 else values.roll(1, 0)
        return torch.lerp(values, moved, 0.1)  # the next sample's share

    return _change_values(tensor, mix)


def _change_values(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    new, values = copy_tensor(tensor), tensor.detach()
    if may_change(values):
        new.detach().copy_(change(values))
    return new


def copy_batch(batch: Batch) -> Batch:
    """A batch with tensors of its own, for a step that may write to them."""
    return map_tensors(batch, copy_tensor)


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as the tensor does, a slice too: code is compiled for strides.

    It asks for a gradient if the tensor does.
    """
    values = tensor.detach()
    if is_plain(values) and 0 not in values.stride():
        copy = torch.empty_strided(
            values.shape, values.stride(), dtype=values.dtype, device=values.device
        ).copy_(values)
    else:
        copy = values.clone()
    return copy.requires_grad_(tensor.requires_grad)


def are_equal(one: Batch, other: Batch) -> bool:
    """Whether every plain tensor of a batch is the same in the other."""
    pairs = zip(one.inputs, other.inputs, strict=True)
    return all(a is b or torch.equal(a, b) for a, b in pairs if is_plain(a))


def describe_tensors(batch: Batch) -> dict[str, str]:
    """The shape and format of each tensor, and the type of each other value, by the place in the
    batch.
    """
    places, _ = torch.utils._pytree.tree_flatten_with_path([batch.args, dict(batch.kwargs)])
    described = {}
    for path, leaf in places:
        text = type(leaf).__name__
        if isinstance(leaf, torch.Tensor):
            text = f"{name_format(leaf.dtype)} {list(leaf.shape)}"
        described[torch.utils._pytree.keystr(path[1:])] = text
    return described


def make_batch(inputs: Any) -> Batch | None:
    """A batch from one tensor, or a tuple, list or mapping with a tensor in it; None from anything
    else.
    """
    if isinstance(inputs, Mapping):
        batch = Batch(kwargs=dict(inputs))
    elif isinstance(inputs, (tuple, list)):
        batch = Batch(tuple(inputs))
    else:
        batch = Batch((inputs,))
    for item in (*batch.args, *batch.kwargs.values()):
        if isinstance(item, torch.Tensor):
            return batch
    return None


def name_format(dtype: torch.dtype) -> str:
    """Name a number format as a record does, e.g. `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast floats to a number format and complex numbers to that of its pairs; leave the rest as it
    is.
    """
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    if tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor


def map_tensors(batch: Batch, change: Change) -> Batch:
    """The batch with `change` made to every tensor in it."""
    parts = (batch.args, dict(batch.kwargs), batch.target)
    return Batch(*torch.utils._pytree.tree_map_only(torch.Tensor, change, parts))


def _cut(tensor: torch.Tensor, dims: tuple[int, ...], full: int, size: int) -> torch.Tensor:
    """Cut dimensions to a size; a tensor that lacks them, or has another size there, stays."""
    for dim in dims:
        if not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] != full:
            return tensor
    for dim in dims:
        tensor = tensor.narrow(dim, 0, size)
    return tensor.contiguous()


def cut_batches(batches: Iterable[Batch], kind: str, sizes: Sequence[int]) -> tuple[Batch, ...]:
    """Cut batches of each size in turn out of those of the largest. Raises ValueError where nothing
    has that size.
    """
    # of [batch, ...], tokens [batch, sequence], images [batch, channels, height, width]
    dims = {"batch_size": (0,), "sequence_length": (1,), "image_size": (-2, -1)}[kind]
    full = max(sizes)
    found, shapes = [], set()
    for batch in batches:
        for size in sizes:
            cut = map_tensors(batch, partial(_cut, dims=dims, full=full, size=size))
            found.append(cut)
            shapes.add(tuple(tensor.shape for tensor in cut.inputs))
    if len(shapes) < len(set(sizes)):
        raise ValueError(
            f"vary.{kind}: the inputs of this model have no {kind.replace('_', ' ')} of {full} "
            "to vary"
        )
    return tuple(found)
