"""Modules that are heard of before their first calls for training, and compiled from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sweeper.worker.scripts.arms import FirstCalls
from sweeper.worker.scripts.watch.patches import Patches
from sweeper.worker.source_lines import name_call, name_place

CALL = nn.Module.__call__


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor, module: str = "") -> torch.Tensor:
        if module == "wrong":
            raise ValueError(module)
        return self.part(values)  # type: ignore[no-any-return]


@pytest.fixture
def wait_for() -> Iterator[Callable[..., tuple[FirstCalls, list[nn.Module]]]]:
    """Waits for modules by their names; what is heard is in the list."""
    made: list[FirstCalls] = []

    def wait(*names: str) -> tuple[FirstCalls, list[nn.Module]]:
        heard: list[nn.Module] = []

        def hear(module: nn.Module) -> None:
            assert nn.Module.__call__ is CALL
            heard.append(module)

        made.append(FirstCalls(names, hear, Patches()))
        made[-1].begin()
        return made[-1], heard

    yield wait
    for calls in made:
        calls.end()
    assert nn.Module.__call__ is CALL


def name(kind: str, line: int) -> str:
    return name_call(kind, name_place(__file__, line))


def test_a_module_is_heard_of_before_its_first_call_for_training(
    wait_for: Callable[..., Any],
) -> None:
    net, values = Net(), torch.ones(2, 4)
    line = test_a_module_is_heard_of_before_its_first_call_for_training.__code__.co_firstlineno
    _, heard = wait_for(name("Net", line + 11))
    seen = []
    with torch.no_grad():
        net(values)
    net.part(values)  # a part of it, before the whole
    for _ in range(2):
        net(values, module="named as the stand-in's own argument might be")
        seen.append((list(heard), nn.Module.__call__ is CALL))
    assert seen == [([net], True)] * 2


def test_two_modules_that_one_line_calls_are_heard_of_once_each(
    wait_for: Callable[..., Any],
) -> None:
    nets, values = [Net(), Net()], torch.ones(2, 4)
    line = test_two_modules_that_one_line_calls_are_heard_of_once_each.__code__.co_firstlineno
    _, heard = wait_for(*[name("Net", line + 7)] * 2)
    for net in [nets[0], *nets]:
        net(values)
    assert heard == nets
    assert nn.Module.__call__ is CALL


def test_a_call_that_raises_changes_nothing(wait_for: Callable[..., Any]) -> None:
    net = Net()
    calls, heard = wait_for("Net (elsewhere.py:1)")
    with pytest.raises(ValueError, match="wrong"):
        net(torch.ones(2, 4), module="wrong")
    assert nn.Module.__call__ is not CALL
    assert calls.end() == ["Net (elsewhere.py:1)"]
    assert heard == []
    assert nn.Module.__call__ is CALL
