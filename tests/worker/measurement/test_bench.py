from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sweeper.core.settings import Measure
from sweeper.worker.measurement.bench import Arm, Bench
from sweeper.worker.models.batches import Batch

ARM = Arm("eager", lambda _batch: None, eager=True)


class Clocked(Bench):
    """Blocks last as long as a formula of their steps says."""

    def __init__(self, device: str, seconds: Callable[[int], float]) -> None:
        super().__init__((), torch.device(device))  # type: ignore[arg-type]
        self._seconds = seconds

    def block_s(self, _arm: Arm, steps: int, _stance: str = "default") -> float:
        return self._seconds(steps)


@pytest.mark.parametrize(
    ("device", "estimate_s", "seconds", "steps"),
    [
        ("cpu", 0.001, lambda steps: 0.001 * steps, 100),
        ("cpu", 0.1, lambda steps: 0.001 * steps, 100),
        ("cpu", 3.0, lambda steps: 3.0 * steps, 2),
        ("cuda", 0.01, lambda steps: 0.01 * steps, 30),
        ("cuda", 1.0, lambda steps: 0.01 * steps, 30),
        ("cuda", 0.01, lambda steps: 0.06 + 0.01 * steps, 60),
        ("cuda", 0.01, lambda steps: 0.5 + 0.001 * steps, 120),
        ("cuda", 0.01, lambda steps: 9.0 + 0.01 * steps, 30),
    ],
    ids=[
        "as estimated", "estimated on a busy machine", "long steps", "on a GPU", "busy, on a GPU",
        "a cost of each block, soon small", "a cost of each block, never small", "long blocks",
    ],
)  # fmt: skip
def test_steps_of_a_block(device: str, estimate_s: float, seconds: Callable[[int], float], steps: int) -> None:
    """At least 0.1 s and 2 steps on a CPU, 0.3 s and 8 steps on a GPU, doubled there at most twice, below a second."""
    assert Clocked(device, seconds).steps_per_block(ARM, estimate_s, Measure()) == steps


def test_a_block_that_was_held_up_is_not_taken_for_long() -> None:
    held_up = iter([0.5])
    bench = Clocked("cpu", lambda steps: next(held_up, 0.001 * steps))
    assert bench.steps_per_block(ARM, 0.1, Measure()) == 100


@pytest.mark.parametrize("eager_steps", [2, 3])
def test_first_steps_begin_with_the_first_batch(eager_steps: int) -> None:
    first, second = Batch(args=("first",)), Batch(args=("second",))
    seen: list[Batch] = []
    bench = Bench((first, second), torch.device("cpu"))
    bench.run(ARM, eager_steps)
    bench.first_steps_s(Arm("compiled", seen.append, eager=True))
    assert seen[:3] == [first, second, first]
