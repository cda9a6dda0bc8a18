"""The state that a step changes, and the way back to where it began: by copies into the same tensors.

Compiled code and recorded CUDA graphs hold the addresses of parameters, so nothing is ever replaced. The saved values
lie on the host, where they do not count as the model's memory; for a while they may lie on the device as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sweeper.worker.models.batches import Batch, map_tensors


class Snapshot:
    """Parameters and buffers of a module as they were when this was made."""

    def __init__(self, module: torch.nn.Module) -> None:
        tables = [table for owner in module.modules() for table in (owner._parameters, owner._buffers)]
        self._tables = [(table, dict(table)) for table in tables]
        tensors = [tensor for _, table in self._tables for tensor in table.values() if tensor is not None]
        self._tensors = list({id(tensor): tensor for tensor in tensors}.values())
        self._values = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors]
        self._nearest = self._values

    def move(self, device: torch.device) -> None:
        """Have the values on a device as well, from which restoring takes no time; on the CPU: on the host alone."""
        self._nearest = self._values  # the memory of the last ones is free first
        self._nearest = [value.to(device) for value in self._values]

    def restore(self, optimizers: Iterable[torch.optim.Optimizer | None], seed: int) -> None:
        """Set parameters and buffers back, every state of the optimizers to zero, and the random generators to `seed`.

        A step may put another tensor in a buffer's place; the first one comes back. Zero is where Adam's moments, its
        count of steps and the momentum of SGD begin.
        """
        for table, tensors in self._tables:
            table.update(tensors)  # type: ignore[arg-type]
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._nearest, strict=True):
                tensor.copy_(value)
            states = (state for optimizer in optimizers if optimizer is not None for state in optimizer.state.values())
            for value in (value for state in states for value in state.values()):
                if isinstance(value, torch.Tensor):
                    value.zero_()
        torch.manual_seed(seed)


def perturb(module: torch.nn.Module, batch: Batch, relative: float) -> Batch:
    """Move every parameter and floating-point input at random by about `relative`; parameters in place."""

    def perturb_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * (1 + relative * torch.randn_like(tensor)) if tensor.is_floating_point() else tensor

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(perturb_tensor(parameter))
        return map_tensors(batch, perturb_tensor)
