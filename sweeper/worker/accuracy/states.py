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

import torch

from sweeper.worker.models.batches import Batch, map_tensors

BUILT, MOVED = "as built", "moved"
SMALL = 0.1  # a constant parameter below this may hide its branch; LayerScale begins at 0.1 or less
FACTOR_SPREAD = 0.1  # of factors around 1
MATRIX_SIZE = 0.02  # as transformers are initialised
BIAS_STEP = 0.02
# of running means and of the logarithms of running variances, which stay positive
STATISTICS_STEP = 0.1


class States:
    """Parameters and buffers of a module as they were when this was made, and as `move` makes
    them.
    """

    def __init__(self, module: torch.nn.Module, seed: int) -> None:
        tables = [
            table for owner in module.modules() for table in (owner._parameters, owner._buffers)
        ]
        self._tables = [(table, dict(table)) for table in tables]
        named = (
            (name, tensor)
            for table in tables
            for name, tensor in table.items()
            if tensor is not None
        )
        named = ((name, tensor) for name, tensor in named if not is_expanded(tensor))
        unique = {id(tensor): (name, tensor) for name, tensor in named}
        self._names = [name for name, _ in unique.values()]
        self._tensors = [tensor for _, tensor in unique.values()]
        self._seed = seed
        built = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors]
        self._values = {BUILT: built, MOVED: built}
        self._nearest = self._values
        self.is_dead = any(
            isinstance(tensor, torch.nn.Parameter) and is_small_constant(value)
            for tensor, value in zip(self._tensors, built, strict=True)
        )

    def move(self, share: float) -> None:
        """Make the second state, by a share of the way; the same each time."""
        generator = torch.Generator().manual_seed(self._seed)
        triples = zip(self._names, self._tensors, self._values[BUILT], strict=True)
        self._values[MOVED] = [
            move_tensor(name, tensor, value, share, generator) for name, tensor, value in triples
        ]
        self.place(self._nearest_device())

    def place(self, device: torch.device) -> None:
        """Have the values on a device as well, from which restoring takes no time; on the CPU: on
        the host alone.
        """
        pairs = zip(self._values[BUILT], self._nearest[BUILT], strict=True)
        near = {id(value): copy for value, copy in pairs if copy.device.type == device.type}
        self._nearest = self._values  # the memory of the last moved ones is free first
        for value in (value for values in self._values.values() for value in values):
            if id(value) not in near:
                near[id(value)] = value.to(device)
        self._nearest = {
            state: [near[id(value)] for value in values] for state, values in self._values.items()
        }

    def _nearest_device(self) -> torch.device:
        return self._nearest[BUILT][0].device if self._tensors else torch.device("cpu")

    def restore(
        self, optimizers: Iterable[torch.optim.Optimizer | None], seed: int, state: str = BUILT
    ) -> None:
        """Set parameters and buffers to a state, every state of the optimizers to zero, and the
        generators to `seed`.

        A step may put another tensor in a buffer's place; the first one comes back. Zero is where
        Adam's moments, its count of steps and the momentum of SGD begin.
        """
        for table, tensors in self._tables:
            table.update(tensors)  # type: ignore[arg-type]
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._nearest[state], strict=True):
                tensor.copy_(value)
            states = (
                state
                for optimizer in optimizers
                if optimizer is not None
                for state in optimizer.state.values()
            )
            for value in (value for state in states for value in state.values()):
                if isinstance(value, torch.Tensor):
                    value.zero_()
        seed_generators(seed)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share their memory; torch refuses every write to such a tensor."""
    sizes = (
        zip(tensor.stride(), tensor.shape, strict=True) if tensor.layout == torch.strided else ()
    )
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
    first = value.flatten()[0]
    return bool(first.abs() < SMALL) and bool((value == first).all())


def move_tensor(
    name: str, tensor: torch.Tensor, value: torch.Tensor, share: float, generator: torch.Generator
) -> torch.Tensor:
    """Move a parameter or buffer from `value`, by `share` of the way to where it does something;
    most stay.

    `name` is its own in its module. Factors go to N(1, 0.1), matrices to N(0, 0.02); biases move by
    N(0, 0.02), running means by N(0, 0.1), and running variances by 10 %.
    """

    def draw() -> torch.Tensor:
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    if not value.is_floating_point():
        return value
    if not isinstance(tensor, torch.nn.Parameter):
        if name == "running_mean":
            return value + share * STATISTICS_STEP * draw()
        return value * (share * STATISTICS_STEP * draw()).exp() if name == "running_var" else value
    if "bias" in name:
        return value + share * BIAS_STEP * draw()
    if not is_small_constant(value):
        return value
    is_matrix = sum(size > 1 for size in value.shape) > 1
    target = MATRIX_SIZE * draw() if is_matrix else 1 + FACTOR_SPREAD * draw()
    return value + share * (target - value)


def perturb(module: torch.nn.Module, batch: Batch, relative: float) -> Batch:
    """Move every parameter and floating-point input at random by about `relative`; parameters in
    place.
    """

    def perturb_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return (
            tensor * (1 + relative * torch.randn_like(tensor))
            if tensor.is_floating_point()
            else tensor
        )

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(perturb_tensor(parameter))
        return map_tensors(batch, perturb_tensor)
