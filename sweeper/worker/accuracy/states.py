"""The states in which the check runs a step, and the way back to each: by copies into the same
tensors.

As built, some models have branches that are dead: a weight of zeros, or a LayerScale of 1e-6, hides
what a compiler has done to a residual branch. So there is a second state, `MOVED`, in which no
branch is dead.

Compiled code and recorded CUDA graphs hold the addresses of parameters, so nothing is ever
replaced. The values lie on the host, where they do not count as the model's memory; for a while
they may lie on the device as well.
"""

import random
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from sweeper.worker.measurement.attributes import Attributes
from sweeper.worker.models.batches import Batch, map_tensors

BUILT, MOVED = "as built", "moved"
SMALL = 0.1  # a constant parameter below this may hide its branch; LayerScale begins at 0.1 or less


class _Held(NamedTuple):
    """A parameter, buffer or attribute, and its values."""

    name: str  # in its module
    tensor: torch.Tensor
    built: torch.Tensor  # on the host
    # by state, where restoring takes no time; none of its own for MOVED where it stays as built
    near: dict[str, torch.Tensor]

    def move(self, share: float, generator: torch.Generator) -> torch.Tensor:
        """The values as built, moved by `share` of the way to where they do something; most stay.

        Factors go to N(1, 0.1), matrices to N(0, 0.02), as transformers are initialised; biases
        move by N(0, 0.02), running means by N(0, 0.1), and running variances by 10 %.
        """
        value = self.built

        def draw() -> torch.Tensor:
            return torch.randn(value.shape, generator=generator).to(value.dtype)

        if not value.is_floating_point():
            return value
        if not isinstance(self.tensor, torch.nn.Parameter):
            if self.name == "running_mean":
                return value + share * 0.1 * draw()
            if self.name == "running_var":
                return value * (share * 0.1 * draw()).exp()  # it stays positive
            return value
        if "bias" in self.name:
            return value + share * 0.02 * draw()
        if not self.tensor.requires_grad:  # the mean of another one, which it would be equal to
            return value * (1 + share * 0.02 * draw())
        if not is_small_constant(value):
            return value
        is_matrix = sum(size > 1 for size in value.shape) > 1
        target = 0.02 * draw() if is_matrix else 1 + 0.1 * draw()
        return value + share * (target - value)


class States:
    """Parameters, buffers and attributes of a module as they were when this was made, and as `move`
    makes them.
    """

    def __init__(self, module: torch.nn.Module, seed: int) -> None:
        self._seed = seed
        self._place = torch.device("cpu")
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.attributes = Attributes(module)
        self.is_dead = False
        self._held: dict[int, _Held] = {}
        for owner in module.modules():
            for table in (owner._parameters, owner._buffers):
                self._tables.append((table, dict(table)))
                for name, tensor in table.items():
                    if tensor is not None:
                        self._hold(name, tensor)
        self._hold_attributes()

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        if is_expanded(tensor):
            return
        value = tensor.detach().to("cpu", copy=True)
        self._held[id(tensor)] = _Held(name, tensor, value, {BUILT: value})
        if isinstance(tensor, torch.nn.Parameter) and is_small_constant(value):
            self.is_dead = True

    def _hold_attributes(self) -> None:
        for name, tensor in self.attributes.name_tensors():
            if id(tensor) not in self._held:
                self._hold(name.rpartition(".")[2], tensor)

    def find_attributes(self) -> None:
        """Hold attributes that the first steps have made, as they are now."""
        self.attributes.find(copies=True)
        self._hold_attributes()

    def move(self, share: float) -> None:
        """Make the second state, by a share of the way; the same each time."""
        generator = torch.Generator().manual_seed(self._seed)
        for held in self._held.values():
            held.near.pop(MOVED, None)  # the memory of the last moved one is free first
            moved = held.move(share, generator)
            if moved is not held.built:
                held.near[MOVED] = moved.to(self._place)

    def place(self, device: torch.device) -> None:
        """Have the values on a device as well, from which restoring takes no time; on the CPU: on
        the host alone.
        """
        for held in self._held.values():
            held.near[BUILT] = held.built.to(device)
            if MOVED in held.near:
                held.near[MOVED] = held.near[MOVED].to(device)
        self._place = device

    def restore(
        self, optimizers: Iterable[torch.optim.Optimizer | None], seed: int, state: str = BUILT
    ) -> None:
        """Set parameters, buffers and attributes to a state, every state of the optimizers to zero,
        and the generators to `seed`, those of the module too.

        A step may put another tensor in a buffer's place; the first one comes back. Zero is where
        Adam's moments, its count of steps and the momentum of SGD begin.
        """
        for table, tensors in self._tables:
            table.update(tensors)
        self.attributes.restore()
        with torch.inference_mode():  # which may write to tensors of both kinds
            for held in self._held.values():
                held.tensor.copy_(held.near.get(state, held.near[BUILT]))
            for optimizer in filter(None, optimizers):
                for values in optimizer.state.values():
                    for value in values.values():
                        if isinstance(value, torch.Tensor):
                            value.zero_()
        for generator in self.attributes.generators:
            generator.manual_seed(seed)
        seed_generators(seed)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share their memory; torch refuses every write to such a tensor."""
    if tensor.layout != torch.strided:
        return False
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in sizes)


def seed_generators(seed: int) -> None:
    """Seed what a step may draw from: torch, Python, and numpy where it is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed)


def is_small_constant(value: torch.Tensor) -> bool:
    """Whether all numbers are the same one, near zero."""
    if not value.is_floating_point() or not value.numel():
        return False
    first, last = value[(0,) * value.dim()], value[(-1,) * value.dim()]
    # of random numbers these differ; to compare gigabytes of them takes seconds
    return bool(first.abs() < SMALL) and bool(first == last) and bool((value == first).all())


def perturb(module: torch.nn.Module, batch: Batch, relative: float) -> None:
    """Move every parameter and floating-point input at random by about `relative`, in place: code
    is compiled for the strides of inputs, and for whether they want a gradient.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            tensor.mul_(1 + relative * torch.randn_like(tensor))
        return tensor

    with torch.no_grad():
        for parameter in module.parameters():
            move(parameter)
        map_tensors(batch, move)
