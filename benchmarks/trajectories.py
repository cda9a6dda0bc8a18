"""How often `model.trajectory` calls a wrong training wrong, and a right one wrong.

    python benchmarks/trajectories.py --json docs/results/trajectories.json
    python benchmarks/trajectories.py --autocast bfloat16 --runs 4

Three small models (convolutions with batch normalisation, a transformer with dropout, residual
blocks with layer normalisation) train for 300 steps by SGD and by Adam, in plain loops of this
file. The compiled arm is eager with a plant in one of its linear layers, drawn anew in each run:

* `turned`: the gradient of the weight is turned by 1 % of its length, at a right angle to itself;
* `dropped`: the gradient of the bias is zero;
* `bfloat16`: the gradient of the weight is summed over the samples of the batch in bfloat16.

Runs without a plant have other kernels (`without oneDNN`), or weights that are moved by rounding
(`moved`); `compiled` is what Inductor makes of the model. Each of these should pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sweeper.core.record import Trajectory
from sweeper.core.serialization import to_json
from sweeper.core.trial import Labels, Model, Precision, Trial
from sweeper.worker.accuracy import rule
from sweeper.worker.scripts.trajectory.step_replayer import StepReplayer

BATCH, STEPS = 16, 300
CPU = torch.device("cpu")
Function = Callable[..., Any]


class Convolutions(nn.Module):
    """Images [batch, 3, 16, 16] to ten classes."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 32))
        blocks = [
            (nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes
        ]
        self.body = nn.Sequential(*(layer for block in blocks for layer in block))
        self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.hidden(self.body(images).mean((2, 3))).relu())
        return hidden


class Attention(nn.Module):
    """Tokens [batch, 24] to ten classes, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True)
        self.layers, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(32, 10),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)).mean(1))
        return logits


class Residual(nn.Module):
    """Vectors [batch, 64] to ten classes, through blocks with layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        parts = [
            nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 192), nn.SiLU(), nn.Linear(192, 96))
            for _ in range(4)
        ]
        self.blocks, self.head = nn.ModuleList(parts), nn.Linear(96, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


MODELS = {"convolutions": Convolutions, "attention": Attention, "residual": Residual}
OPTIMIZERS: dict[str, Function] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def draw_batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(10, (BATCH,))
    if name == "attention":
        tokens = torch.randint(100, (BATCH, 24))
        return torch.where(torch.rand(BATCH, 24) < 0.3, labels[:, None] * 10, tokens), labels
    shape = (BATCH, 3, 16, 16) if name == "convolutions" else (BATCH, 64)
    means = torch.linspace(-1, 1, 10)[labels].view(-1, *(1 for _ in shape[1:]))
    return torch.randn(shape) + means, labels


class PlantedLinear(torch.autograd.Function):
    """A linear layer whose backward pass has a plant; inputs [..., in], weight [out, in]."""

    @staticmethod
    def forward(
        ctx: Any, plant: str, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.plant = plant
        ctx.save_for_backward(inputs, weight)
        return nn.functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(
        ctx: Any, *outputs: torch.Tensor
    ) -> tuple[None, torch.Tensor, torch.Tensor, torch.Tensor]:  # type: ignore[override]
        (gradient,), (inputs, weight) = outputs, ctx.saved_tensors
        of_bias = gradient.flatten(0, -2).sum(0)
        samples = zip(
            gradient.flatten(0, -2).split(gradient.shape[:-1].numel() // BATCH),
            inputs.flatten(0, -2).split(gradient.shape[:-1].numel() // BATCH),
            strict=True,
        )
        parts = [a.T.to(b.dtype) @ b for a, b in samples]
        of_weight = torch.stack(parts).sum(0)
        if ctx.plant == "dropped":
            of_bias = torch.zeros_like(of_bias)
        elif ctx.plant == "turned":
            of_weight = of_weight + 0.01 * turn(of_weight)
        elif ctx.plant == "bfloat16":
            total = torch.zeros_like(of_weight, dtype=torch.bfloat16)
            for part in parts:
                total += part.bfloat16()
            of_weight = total.to(of_weight.dtype)
        return None, gradient.to(weight.dtype) @ weight, of_weight, of_bias


def turn(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix of the same length at a right angle to it; the same rotation of all matrices [out,
    in] with in even.
    """
    left, right = matrix[:, ::2], matrix[:, 1::2]
    return torch.stack([-right, left], -1).flatten(1)


def plant(model: nn.Module, kind: str, generator: random.Random) -> Function:
    """The model as a function, with a plant in one of its linear layers."""
    layers = [part for part in model.modules() if type(part) is nn.Linear]
    layer = generator.choice(layers)

    def planted(inputs: torch.Tensor) -> torch.Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        weight, bias = layer.weight, layer.bias
        if autocast:
            inputs, weight, bias = inputs.bfloat16(), weight.bfloat16(), bias.bfloat16()
        result: torch.Tensor = PlantedLinear.apply(kind, inputs, weight, bias)  # type: ignore[no-untyped-call]
        return result

    def call(*inputs: torch.Tensor) -> Any:
        layer.__dict__["forward"] = planted
        try:
            return model(*inputs)
        finally:
            del layer.__dict__["forward"]

    return call


def vary(model: nn.Module, kind: str) -> Function:
    """The model as a function that is as right as eager, with other kernels or moved by
    rounding.
    """

    @contextlib.contextmanager
    def moved() -> Iterator[None]:
        autocast = "bfloat16" if torch.is_autocast_enabled("cpu") else None
        size = rule.perturbation(Precision(autocast=autocast), "reduced" if autocast else "full")
        before = [item.detach().clone() for item in model.parameters()]
        state = torch.get_rng_state()
        with torch.no_grad():
            for item in model.parameters():
                item.mul_(1 + size * torch.randn_like(item))
        torch.set_rng_state(state)
        try:
            yield
        finally:
            for item, value in zip(model.parameters(), before, strict=True):
                item.data = value  # what the backward pass has kept stays

    contexts: dict[str, Function] = {
        "without oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
        "moved": moved,
    }

    def call(*inputs: torch.Tensor) -> Any:
        with contexts[kind]():
            return model(*inputs)

    return call


def train(
    name: str, optimizer: str, case: str, seed: int, autocast: torch.dtype | None
) -> Trajectory:
    """Train a model for some steps in a plain loop, and judge the function that stands for its
    compiled arm.
    """
    torch.manual_seed(seed)
    model = MODELS[name]()
    function = make_function(model, case, random.Random(seed))
    trial = Trial(Model("script", "x"), 1, Labels("x", "own"))
    follower = StepReplayer(model, function, trial, CPU)
    steps = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(STEPS):
        inputs, labels = draw_batch(name)
        with torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(follower(inputs).float(), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        follower.compare()
    return follower.judge()


def make_function(model: nn.Module, case: str, generator: random.Random) -> Function:
    if case == "compiled":
        torch._dynamo.reset()
        torch._inductor.config.fallback_random = True
        return torch.compile(model)
    return plant(model, case, generator) if case in PLANTS else vary(model, case)


PLANTS = ("turned", "dropped", "bfloat16")
RIGHT = ("without oneDNN", "moved")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="of each plant, model and optimizer")
    parser.add_argument(
        "--pairs", type=int, default=40, help="of eager and eager, over all models and optimizers"
    )
    parser.add_argument("--compiled", type=int, default=1, help="compiled runs of each")
    parser.add_argument("--autocast", choices=["bfloat16"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    autocast = getattr(torch, options.autocast) if options.autocast else None
    cells = [(name, optimizer) for name in options.models.split(",") for optimizer in OPTIMIZERS]
    work = [
        (*cell, case, seed) for cell in cells for case in PLANTS for seed in range(options.runs)
    ]
    work += [
        (*cells[seed % len(cells)], RIGHT[seed // len(cells) % 2], 100 + seed)
        for seed in range(options.pairs)
    ]
    work += [(*cell, "compiled", 200 + seed) for cell in cells for seed in range(options.compiled)]
    found: Counter[tuple[str, str, str]] = Counter()
    runs: Counter[tuple[str, str, str]] = Counter()
    rows = []
    for name, optimizer, case, seed in work:
        seen = train(name, optimizer, case, seed, autocast)
        runs[name, optimizer, case] += 1
        found[name, optimizer, case] += seen.passed is False
        run = {"model": name, "optimizer": optimizer, "case": case, "seed": seed}
        rows.append({**run, **to_json(seen)})
        print("; ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    print()
    for cell, count in runs.items():
        print(*cell, f"called wrong in {found[cell]} of {count}", sep="; ")
    if options.json:
        options.json.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    main()
