"""Factories whose module breaks Inductor in one way each, for `model=custom`: three models with a
sine, and the same with a fault.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._inductor.config
from torch import nn

WIDTH = 8
Built = tuple[nn.Module, tuple[torch.Tensor, ...]]
Factory = Callable[[int, str], Built]


class Waves(nn.Module):
    """A layer between two operations, of which one is lowered by Inductor in two kernels at
    most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.inner(torch.exp(-x * x)))


class Pictures(nn.Module):
    """A convolution with its batch norm, and a sine where others have a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, WIDTH, 1), nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.norm(self.convolution(x))).mean((2, 3))


class Sentences(nn.Module):
    """Attention over tokens, whose places are told by sines."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)[:, None] + x
        tokens = self.norm(x + torch.sin(places))
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return tokens + attended


def waves(batch_size: int, device: str) -> Built:
    return Waves().to(device), (torch.randn(batch_size, WIDTH, device=device),)


def pictures(batch_size: int, device: str) -> Built:
    return Pictures().to(device), (torch.randn(batch_size, 3, 64, 64, device=device),)


def sentences(batch_size: int, device: str) -> Built:
    return Sentences().to(device), (torch.randn(batch_size, 64, WIDTH, device=device),)


def break_lowering() -> None:
    """Inductor computes the cosine where the model asks for the sine."""
    from torch._inductor import lowering

    aten = torch.ops.aten
    for name in ("default", "out"):
        sine = getattr(aten.sin, name)
        if sine in lowering.lowerings:
            lowering.lowerings[sine] = lowering.lowerings[aten.cos.default]


def break_pass() -> None:
    """A pass of Inductor raises an error."""

    def fail(graph: torch.fx.Graph) -> None:
        raise ZeroDivisionError("a pass that breaks")

    torch._inductor.config.post_grad_custom_post_pass = fail


def plant(fault: Callable[[], None], factory: Factory) -> Factory:
    def build(batch_size: int, device: str) -> Built:
        fault()
        return factory(batch_size, device)

    return build


wrong_lowering_waves = plant(break_lowering, waves)
wrong_lowering_pictures = plant(break_lowering, pictures)
wrong_lowering_sentences = plant(break_lowering, sentences)
breaking_pass_waves = plant(break_pass, waves)
breaking_pass_pictures = plant(break_pass, pictures)
breaking_pass_sentences = plant(break_pass, sentences)
