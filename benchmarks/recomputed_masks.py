"""Are gradients those of the loss when activations are computed again? A plain loop in torch,
without sweeper.

    python benchmarks/recomputed_masks.py            budgets 1.0 and 0.5 on the CPU, two minutes
    python benchmarks/recomputed_masks.py --device cuda --budgets 1.0,0.7,0.5,0.3

For each seed the parameters move by a small step along their gradient and back, with the masks of
this seed. The loss must then change by the step times the length of the gradient. A share of 1 says
that it does; a backward pass that drew masks of its own has gradients of another loss, and its
share is lower. Prints the shares of compiled and eager steps of a transformer of two layers with
dropout 0.1, under each `torch._functorch.config.activation_memory_budget`. See
https://github.com/pytorch/pytorch/issues/190758.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch._functorch.config
from torch import nn

SEEDS = 6
STEP = 1e-2  # of the length of the gradient


class Classifier(nn.Module):
    """A transformer on tokens, whose loss is that of a class for each token."""

    def __init__(self, width: int = 64, classes: int = 200) -> None:
        super().__init__()
        self.tokens = nn.Embedding(classes, width)
        layers = [
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, batch_first=True) for _ in range(2)
        ]
        self.layers = nn.Sequential(*layers)
        self.classes = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self.classes(self.layers(self.tokens(tokens)))
        return nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())


def measure_share(loss: Callable[[], torch.Tensor], module: nn.Module, seed: int) -> float:
    """The measured change of the loss along the gradient, as a share of the change that the
    gradient promises.
    """
    torch.manual_seed(seed)
    module.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    moved = [
        (parameter, parameter.grad.clone())
        for parameter in module.parameters()
        if parameter.grad is not None
    ]
    length = float(torch.stack([gradient.norm() for _, gradient in moved]).norm())

    def move(distance: float) -> None:
        with torch.no_grad():
            for parameter, gradient in moved:
                parameter.add_(gradient, alpha=distance / length)

    losses = []
    for distance in (STEP, -STEP):
        move(distance)
        torch.manual_seed(seed)
        losses.append(loss().item())
        move(-distance)
    return (losses[0] - losses[1]) / (2 * STEP * length)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budgets", default="1.0,0.5")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    module = Classifier().to(arguments.device)
    tokens = torch.randint(0, 200, (4, 32), device=arguments.device)
    print(
        "| activation_memory_budget | arm | share, lowest and highest of 6 seeds |\n|---|---|---|"
    )
    for budget in map(float, arguments.budgets.split(",")):
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = budget
        compiled = torch.compile(module)
        for name, arm in (("eager", module), ("compiled", compiled)):
            shares = [
                measure_share(lambda arm=arm: arm(tokens), module, seed) for seed in range(SEEDS)
            ]  # type: ignore[misc]
            print(f"| {budget} | {name} | {min(shares):.3f} to {max(shares):.3f} |", flush=True)


if __name__ == "__main__":
    main()
