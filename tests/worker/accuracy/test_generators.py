"""The states of random generators: read, compared, and put back."""

from __future__ import annotations

import random

import numpy as np
import torch

from sweeper.worker.accuracy.generators import read_states, write_states

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    # the one that models use
    return float(torch.rand(1)), random.random(), float(np.random.random())


def test_states_that_are_put_back_give_the_same_numbers() -> None:
    draw()  # numpy imports its generators when they are used
    before = read_states(CPU)
    assert read_states(CPU) == before
    first = draw()
    changed = read_states(CPU)
    for name in ("torch_cpu", "python", "numpy"):
        assert getattr(changed, name) != getattr(before, name)
    write_states(before, CPU)
    assert read_states(CPU) == before
    assert draw() == first
