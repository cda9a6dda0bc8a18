"""Factories whose module breaks Inductor in one way each, for `model=custom`."""

from __future__ import annotations

import torch
import torch._inductor.config
from torch import nn

WIDTH = 8


class Waves(nn.Module):
    """A layer between two operations, of which one is lowered by Inductor in two kernels at
    most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.inner(torch.exp(-x * x)))


def build(batch_size: int, device: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Waves().to(device), (torch.randn(batch_size, WIDTH, device=device),)


def wrong_lowering(batch_size: int, device: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Inductor computes the cosine where the model asks for the sine."""
    from torch._inductor import lowering

    aten = torch.ops.aten
    for name in ("default", "out"):
        sine = getattr(aten.sin, name)
        if sine in lowering.lowerings:
            lowering.lowerings[sine] = lowering.lowerings[aten.cos.default]
    return build(batch_size, device)


def breaking_pass(batch_size: int, device: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A pass of Inductor raises an error."""

    def fail(graph: torch.fx.Graph) -> None:
        raise ZeroDivisionError("a pass that breaks")

    torch._inductor.config.post_grad_custom_post_pass = fail
    return build(batch_size, device)
