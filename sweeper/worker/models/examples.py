"""Small models to learn from, each a factory as a user would write it: `pointwise`, `control_flow`
and `resnet8`.

Try: `python -m sweeper model=control_flow batch_size=8`
"""

from collections.abc import Callable

import torch
from torch import nn

# of a vector; 256 of them are 64 MiB, enough to keep a GPU busy beyond the launch of a kernel
LENGTH = 1 << 16
WIDTH = 256

# channels of the CIFAR ResNets, https://arxiv.org/abs/1512.03385, section 4.2
STAGES = (16, 32, 64)
CLASSES, IMAGE_SIZE = 10, 32  # of CIFAR-10


class Pointwise(nn.Module):
    """sin(a) + cos(b), which eager runs as one kernel per operation and a compiler as one kernel.

    `phase` is added to b and starts at 0, so that there is something to train.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(LENGTH))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sin(a) + torch.cos(b + self.phase)


def pointwise(batch_size: int, device: torch.device) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Inputs a and b: float32 [batch, LENGTH]."""
    a = torch.randn(batch_size, LENGTH, device=device)
    b = torch.randn(batch_size, LENGTH, device=device)
    return Pointwise().to(device), (a, b)


class ControlFlow(nn.Module):
    """The sign of the result depends on the data: the first sample's sum.

    `torch.compile` breaks the graph there and is right; with `fullgraph` it refuses, as symbolic
    tracing does; a trace keeps the branch that it saw and is wrong for the other one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        if x[0].sum() < 0:
            return -y
        return y


def control_flow(batch_size: int, device: torch.device) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Input x: float32 [batch, WIDTH]; its first sample is slightly positive, its last one far
    below zero.

    So the first batch takes one branch. The second, whose samples have moved by one, and the one
    for the check, which has a tenth of the next sample mixed into each, take the other one.
    """
    if batch_size < 2:
        raise ValueError(
            "control_flow needs two samples for its two branches: batch_size=2 or more"
        )
    x = torch.rand(batch_size, WIDTH, device=device)
    x[-1] *= -20.0
    return ControlFlow().to(device), (x,)


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        projection = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        self.shortcut = nn.Identity() if stride == 1 else projection

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet8(
    batch_size: int, device: torch.device
) -> tuple[nn.Module, tuple[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """The smallest ResNet for CIFAR-10, one block per stage; images float32 [batch, 3, 32, 32]."""
    stem = nn.Sequential(
        nn.Conv2d(3, STAGES[0], 3, 1, 1, bias=False), nn.BatchNorm2d(STAGES[0]), nn.ReLU()
    )
    blocks = [
        ResidualBlock(inputs, outputs)
        for inputs, outputs in zip((STAGES[0], *STAGES), STAGES, strict=False)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1], CLASSES))
    images = torch.randn(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE, device=device)
    labels = torch.randint(CLASSES, (batch_size,), device=device)
    model = nn.Sequential(stem, *blocks, head).to(device)
    return model, (images,), lambda y: nn.functional.cross_entropy(y, labels)
