"""What does it cost a training script to be watched? Blocks of steps with and without the hooks, in
turn.

    python benchmarks/script_hooks.py
    python benchmarks/script_hooks.py --hidden 2048 --device cuda   the host is the slower one
    python benchmarks/script_hooks.py --hidden 8192 --layers 8 --device cuda      the device is

One loop of a small network over a loader of torch, eager in all blocks. Watched blocks run as in
`lead_loop`: the end of each step, each batch and each wait for the loader is seen. Which steps end
a step of the loop, and which module is trained, is found out before the block. It prints wall
microseconds per step.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sweeper.worker.scripts.loop import Lead, Loop

STEPS, UNTIMED = 300, 20


def lead(loop: Loop) -> Lead:
    """See every step, and ask for nothing."""
    loop.loader.keep_none()
    while True:
        yield


class Training:
    """A loop of which a block of steps can be timed."""

    def __init__(self, hidden: int, layers: int, device: str) -> None:
        self.device, self.size = device, 256
        inner = (
            layer for _ in range(layers - 1) for layer in (nn.Linear(hidden, hidden), nn.GELU())
        )
        ends = nn.Linear(self.size, hidden), nn.Linear(hidden, 10)
        self.module = nn.Sequential(ends[0], nn.GELU(), *inner, nn.LayerNorm(hidden), ends[1]).to(
            device
        )
        self.optimizer = torch.optim.AdamW(self.module.parameters())
        data = TensorDataset(torch.randn(64 * STEPS, self.size), torch.randint(10, (64 * STEPS,)))
        self.loader = DataLoader(data, batch_size=64)

    def block_us(self) -> float:
        """Wall microseconds per step of an epoch."""
        self._train(UNTIMED)
        self._synchronize()
        start = time.perf_counter()
        self._train(STEPS)
        self._synchronize()
        return (time.perf_counter() - start) / STEPS * 1e6

    def watched_us(self) -> float:
        loop = Loop(lead, lambda _error: None)
        try:
            return self.block_us()
        finally:
            loop.stop()

    def _train(self, steps: int) -> None:
        for inputs, labels in islice(self.loader, steps):
            loss = nn.functional.cross_entropy(
                self.module(inputs.to(self.device)), labels.to(self.device)
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=1024, help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=21, help="default: %(default)s")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(arguments.hidden, arguments.layers, arguments.device)
    training.block_us()
    pairs = []
    for index in range(arguments.pairs):
        first = training.block_us() if index % 2 else training.watched_us()
        second = training.watched_us() if index % 2 else training.block_us()
        pairs.append((first, second) if index % 2 else (second, first))
    plain, costs = (
        median(pair[0] for pair in pairs),
        sorted(watched - alone for alone, watched in pairs),
    )
    cost = median(costs)
    print(
        f"a step {plain:.0f} us; watched {cost:+.1f} us, {cost / plain:+.2%} (median of "
        f"{arguments.pairs} pairs)"
    )
    print(
        f"middle half of the pairs: {costs[len(costs) // 4]:+.1f} to "
        f"{costs[-len(costs) // 4]:+.1f} us"
    )


if __name__ == "__main__":
    main()
