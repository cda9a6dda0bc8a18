"""What a script's modules are called, which dimension of its batches varies, and to which sizes to
pad.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import Size

from sweeper.core.record import SizeCount
from sweeper.worker.scripts.description import (
    MAX_SIZES,
    choose_sizes,
    count_sizes,
    find_uncalled_share,
    group_sizes,
    name_module,
)


class Net(torch.nn.Linear):
    pass


def test_a_module_has_the_name_of_its_class_compiled_or_not_and_its_line() -> None:
    own, compiled, other = Net(2, 2), torch.compile(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2)
    lines = {own: "train.py:3", compiled: "train.py:4"}
    setup = SimpleNamespace(loop=SimpleNamespace(modules=SimpleNamespace(modules=lines)))
    assert [name_module(setup.loop, module) for module in (own, compiled, other)] == [
        "Net (train.py:3)",
        "torch.nn.Linear (train.py:4)",
        "torch.nn.Linear",
    ]


def test_parameters_of_modules_that_are_not_called_have_a_share() -> None:
    called, other = torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 3, bias=False)
    frozen = torch.nn.Linear(9, 9).requires_grad_(False)
    first = torch.optim.SGD([*called.parameters(), *other.parameters(), *frozen.parameters()])
    second = torch.optim.SGD(other.parameters())
    modules = SimpleNamespace(modules={called: "train.py:3"})
    setup = SimpleNamespace(loop=SimpleNamespace(modules=modules, optimizers=[first, second]))
    assert find_uncalled_share(setup.loop) == 9 / 12


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({(Size([4, 7]), Size([4])): 2, (Size([4, 9]), Size([4])): 1}, {7: 2, 9: 1}),
        # the first tensor alone counts
        ({(Size([4, 7]), Size([4])): 2, (Size([4, 7]), Size([2])): 1}, {}),
        ({(Size([4, 7]),): 2, (Size([2, 7]),): 1, (Size([4, 7]), Size([1])): 3}, {4: 5, 2: 1}),
        ({(Size([4, 7]),): 2, (Size([2, 9]),): 1}, {}),  # two dimensions vary
        ({(Size([4, 7]),): 2, (Size([4]),): 1}, {}),
        ({(Size([4, 7]),): 2}, {}),
        ({(): 2}, {}),  # called without a tensor
        ({}, {}),
    ],
)
def test_sizes_are_of_the_one_dimension_that_varies(shapes, expected: dict[int, int]) -> None:
    assert count_sizes(Counter(shapes)) == Counter(expected)


def test_few_sizes_are_kept_as_they_are() -> None:
    assert group_sizes(Counter({9: 1, 7: 2})) == (SizeCount(7, 2), SizeCount(9, 1))
    assert group_sizes(Counter()) == ()


def test_of_very_many_sizes_neighbours_count_as_the_largest_of_them() -> None:
    found = group_sizes(Counter(dict.fromkeys(range(1, MAX_SIZES + 2), 3)))
    assert found[0] == SizeCount(2, 6)
    assert found[-1] == SizeCount(MAX_SIZES + 1, 3)
    assert len(found) <= MAX_SIZES
    assert sum(item.count for item in found) == 3 * (MAX_SIZES + 1)


def test_sizes_to_pad_to_are_the_quartiles_and_the_largest() -> None:
    assert choose_sizes(Counter(dict.fromkeys(range(1, 101), 1))) == (25, 50, 75, 100)
    assert choose_sizes(Counter({8: 99, 32: 1})) == (8, 32)
    assert choose_sizes(Counter()) == ()
