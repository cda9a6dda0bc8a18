"""How often the test over seeds calls right steps wrong, and how often it finds faults of dropout.

    python benchmarks/seeds.py [--repeats 100] [--faulty 10] [--model bert ...] [--compiled]

Tiny models with dropout 0.1 on a CPU. The steps of the second arm are eager steps with a fault, or
none; with `--compiled` they are Inductor's, in fp32 and under autocast to bfloat16. Prints the
Markdown tables of docs/results/random-steps.md. The seeds are fixed.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import nn

from sweeper.worker.accuracy.seeds import DIRECTION_STEPS, STEPS, SeedTest, SeedVerdict

RATE = 0.1
BATCH = 8
PERTURBATION = {False: 1e-5, True: 2.0**-9}  # by autocast; half a last place of bfloat16
Named = list[tuple[str, torch.Tensor]]


class Dropout(nn.Module):
    """Dropout with a fault, while `fault` names one."""

    fault = ""  # of all instances
    first: Dropout | None = None  # the only one that has the fault, if not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault = self.fault if Dropout.first in (None, self) else ""
        rate = {"rate 0.2": 0.2, "rate 0.12": 0.12, "no dropout": 0.0}.get(fault, RATE)
        keep, scale = 1 - rate, 1.0 if fault == "scale lost" else 1 / (1 - rate)
        shape = (1, *x.shape[1:]) if fault == "one mask for all samples" else x.shape
        if fault == "same mask for every seed":
            generator = torch.Generator().manual_seed(x.numel())
            mask = torch.rand(shape, generator=generator) < keep
        else:
            mask = torch.rand(shape) < keep
        mask = mask.to(x.dtype) * scale
        if fault == "another mask backward":
            other = (torch.rand(shape) < keep).to(x.dtype) * scale
            return x * other + (x * mask - x * other).detach()
        if fault == "no mask backward":
            return x + (x * mask - x).detach()
        return x * mask


@dataclass(frozen=True)
class Case:
    """A model, and what makes a loss of it."""

    module: nn.Module
    loss: Callable[[], tuple[torch.Tensor, torch.Tensor]]  # loss and output


def build_mlp() -> Case:
    layers = [
        nn.Linear(64, 128),
        nn.GELU(),
        Dropout(),
        nn.Linear(128, 128),
        nn.ReLU(),
        Dropout(),
        nn.Linear(128, 10),
    ]
    return classify(nn.Sequential(*layers), torch.randn(32, 64), 10)


class Block(nn.Module):
    """A layer of a transformer, with dropout of attention weights and of both residual branches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), Dropout(), nn.Linear(2 * width, width)
        )
        self.drops = nn.ModuleList(Dropout() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        weights = self.drops[0]((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1))
        x = x + self.drops[1](self.out((weights @ v).transpose(1, 2).flatten(2)))
        return x + self.drops[2](self.mlp(self.norms[1](x)))


class Transformer(nn.Module):
    """An embedding, blocks and a head, on each position or on their mean."""

    def __init__(self, embedding: nn.Module, outputs: int, pools: bool) -> None:
        super().__init__()
        self.embedding, self.drop = embedding, Dropout()
        self.blocks = nn.Sequential(*(Block(64, 2) for _ in range(2)))
        self.norm, self.head, self.pools = nn.LayerNorm(64), nn.Linear(64, outputs), pools

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(x)
        if embedded.dim() == 4:
            embedded = embedded.flatten(2).mT
        x = self.norm(self.blocks(self.drop(embedded)))
        return self.head(x.mean(1) if self.pools else x)


def build_vit() -> Case:
    return classify(
        Transformer(nn.Conv2d(3, 64, 8, 8), 10, pools=True), torch.randn(BATCH, 3, 32, 32), 10
    )


def build_bert() -> Case:
    module, tokens = (
        Transformer(nn.Embedding(500, 64), 500, pools=False),
        torch.randint(500, (BATCH, 32)),
    )
    module.train()

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        output = module(tokens)
        return nn.functional.cross_entropy(output.flatten(0, 1).float(), tokens.flatten()), output

    return Case(module, loss)


def build_cnn() -> Case:
    """Batch norm, and dropout right before the output's layer; a batch so small that bfloat16 is
    chaotic.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1, stride=2),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            Dropout(),
        ]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 10))
    return classify(module, torch.randn(BATCH, 3, 32, 32), 10)


def classify(module: nn.Module, inputs: torch.Tensor, classes: int) -> Case:
    target = torch.randint(classes, (len(inputs),))
    module.train()

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        output = module(inputs)
        return nn.functional.cross_entropy(output.float(), target), output

    return Case(module, loss)


BUILDERS = {"mlp": build_mlp, "vit": build_vit, "bert": build_bert, "cnn": build_cnn}
IN_DROPOUT = (
    "rate 0.12",
    "rate 0.2",
    "scale lost",
    "no dropout",
    "one mask for all samples",
    "same mask for every seed",
    "another mask backward",
    "no mask backward",
)
FACTORS = {"gradients x 1.1": 1.1, "gradients x 2": 2.0, "gradients x -1": -1.0}
FAULTS = [
    *IN_DROPOUT,
    *(f"{name}, first dropout" for name in IN_DROPOUT),
    *FACTORS,
    "one weight's gradient x 1.1",
]


def name_step(case: Case, loss: torch.Tensor, output: torch.Tensor) -> Named:
    gradients = [
        (f"gradient of {name}", p.grad)
        for name, p in case.module.named_parameters()
        if p.grad is not None
    ]
    return [("loss", loss.detach()), ("output", output.detach()), *gradients]


def run_step(
    case: Case, run: Callable[[], tuple[torch.Tensor, torch.Tensor]], autocast: bool, seed: int
) -> Named:
    case.module.zero_grad()
    torch.manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        loss, output = run()
    loss.backward()
    return name_step(case, loss, output)


def run_faulty(case: Case, fault: str, autocast: bool, seed: int) -> Named:
    Dropout.fault, _, place = fault.partition(", ")
    Dropout.first = (
        next(m for m in case.module.modules() if isinstance(m, Dropout)) if place else None
    )
    try:
        step = run_step(case, case.loss, autocast, seed)
    finally:
        Dropout.fault, Dropout.first = "", None
    if fault in FACTORS:
        return [
            (name, tensor * FACTORS[fault] if name.startswith("gradient") else tensor)
            for name, tensor in step
        ]
    if fault == "one weight's gradient x 1.1":
        weights = [
            name for name, tensor in step if name.startswith("gradient") and tensor.dim() > 1
        ]
        return [
            (name, tensor * 1.1 if name == weights[len(weights) // 2] else tensor)
            for name, tensor in step
        ]
    return step


Run = Callable[[int], Named]


def take_eager(case: Case, run: Run, repeat: int, autocast: bool) -> SeedTest:
    """As the worker does."""
    seeds = range(100 * repeat, 100 * repeat + DIRECTION_STEPS)
    test = SeedTest("reduced" if autocast else "full", map(run, seeds))
    with moved(case.module):
        for parameter in case.module.parameters():
            parameter.data.mul_(1 + PERTURBATION[autocast] * torch.randn_like(parameter))
        test.add_rounding(run(seeds[-1]))
    take_arm(case, test, "eager", run, 100 * repeat + 20)
    return test


def judge(case: Case, eager: SeedTest, run: Run, repeat: int) -> SeedVerdict:
    test = deepcopy(eager)
    take_arm(case, test, "compiled", run, 100 * repeat + 40)
    return test.verdict()


def take_arm(case: Case, test: SeedTest, arm: str, run: Run, first: int) -> None:
    for seed in range(first, first + STEPS):
        test.add(arm, run(seed))
        with moved(case.module):
            if test.displace(case.module):
                test.add_displaced_loss(run(seed)[0][1])


@contextmanager
def moved(module: nn.Module) -> Iterator[None]:
    """Put the parameters back afterwards."""
    values = [parameter.detach().clone() for parameter in module.parameters()]
    yield
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.data.copy_(value)


def build(model: str) -> Case:
    torch.manual_seed(0)
    return BUILDERS[model]()


def simulate(
    model: str, autocast: bool, faults: list[str], repeats: int, faulty: int
) -> dict[str, list[SeedVerdict]]:
    """Trials without a fault, and for the first of them trials with each fault, which share the
    steps of eager.
    """
    case, verdicts = build(model), defaultdict(list)
    for repeat in range(repeats):
        eager = take_eager(case, partial(run_faulty, case, "", autocast), repeat, autocast)
        for fault in ["none", *(faults if repeat < faulty else [])]:
            verdicts[fault].append(
                judge(case, eager, partial(run_faulty, case, fault, autocast), repeat)
            )
    return verdicts


def compile_and_judge(model: str, autocast: bool, repeats: int) -> list[SeedVerdict]:
    torch._dynamo.reset()
    case = build(model)
    eager, compiled = (
        partial(run_step, case, run, autocast) for run in (case.loss, torch.compile(case.loss))
    )
    return [judge(case, take_eager(case, eager, n, autocast), compiled, n) for n in range(repeats)]


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, list[SeedVerdict]]]]:
    """Verdicts by the kind of fault, of each model in each precision."""
    for model, autocast in product(arguments.model, (False, True)):
        if arguments.compiled:
            found = {"none: Inductor": compile_and_judge(model, autocast, arguments.repeats)}
        else:
            found = simulate(
                model, autocast, arguments.fault or FAULTS, arguments.repeats, arguments.faulty
            )
        yield f"{model} {'bfloat16' if autocast else 'fp32'}", found


def describe(fault: str, verdicts: list[SeedVerdict]) -> str:
    """The share of wrong verdicts, and the statistic that is the most frequent one in them."""
    wrong = [verdict.worst for verdict in verdicts if verdict.passed is False]
    share = (
        f"{len(wrong) / len(verdicts):.1%}"
        if fault.startswith("none")
        else f"{len(wrong) / len(verdicts):.0%}"
    )
    counts = Counter(worst.statistic for worst in wrong if worst is not None)
    return " ".join([share, *(name for name, _ in counts.most_common(1))])


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and power of the test over seeds.")
    parser.add_argument(
        "--repeats",
        type=int,
        default=100,
        help="trials without a fault, of each model and precision",
    )
    parser.add_argument("--faulty", type=int, default=10, help="trials with each fault")
    parser.add_argument("--model", nargs="*", choices=BUILDERS, default=list(BUILDERS))
    parser.add_argument("--fault", nargs="*", choices=FAULTS)
    parser.add_argument(
        "--compiled", action="store_true", help="Inductor's steps instead of faulty ones"
    )
    arguments = parser.parse_args()
    columns = dict(measure(arguments))
    faults = next(iter(columns.values()))
    print(f"| fault | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for fault in faults:
        print(
            f"| {fault} | "
            f"{' | '.join(describe(fault, found[fault]) for found in columns.values())} |"
        )
    unverified = [
        sum(verdict.passed is None for verdict in next(iter(c.values()))) for c in columns.values()
    ]
    print(f"| unverified of those without a fault | {' | '.join(map(str, unverified))} |")
    medians = [
        median(verdict.resolution for verdict in next(iter(c.values()))) for c in columns.values()
    ]
    print(f"| resolution | {' | '.join(f'{value:.2f}' for value in medians)} |")


if __name__ == "__main__":
    main()
