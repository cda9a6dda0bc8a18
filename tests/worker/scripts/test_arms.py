"""Modules that are heard of before their first calls for training, and compiled from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from script_runs import make_trial
from torch import nn

from sweeper.worker.compilation.compiler import Function
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.scripts.arms import FirstCalls, SwitchableModule
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


def make_sequence(_number: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


def make_net_of_one_class(_number: int) -> nn.Module:
    return Net()


def make_net_of_its_own_class(number: int) -> nn.Module:
    code = f"def forward(self, values): return self.part(values) * {number}"
    functions: dict[str, Any] = {}
    exec(code, functions)
    return type(f"Net{number}", (Net,), functions)()  # type: ignore[no-any-return]


def make_net_with_a_hook(number: int) -> nn.Module:
    net = make_net_of_its_own_class(number)
    net.register_forward_hook(lambda _module, _inputs, _output: None)
    return net


@pytest.mark.compile
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (make_sequence, (1, 0)),
        (make_net_of_one_class, (1, 0)),
        (make_net_of_its_own_class, (9, 0)),
        pytest.param(make_net_with_a_hook, (9, 0), marks=pytest.mark.slow),
    ],
)
def test_nine_modules_are_compiled_as_by_hand(
    make: Callable[[int], nn.Module], expected: tuple[int, int]
) -> None:
    """Graphs and recompilations are counted; torch's limit is eight recompilations of one code."""

    def count(compile_: Callable[[nn.Module, CompileCounters], Function]) -> tuple[int, int]:
        counters = CompileCounters()
        counters.begin()
        try:
            compiled: Sequence[Function] = [compile_(make(index), counters) for index in range(9)]
            for call in compiled:
                call(torch.ones(2, 4)).sum().backward()
        finally:
            counters.end()
        assert counters.explain_not_compiled() is None
        found = counters.report()
        return found.graphs, found.recompiles

    trial = make_trial("train.py")
    by_hand = count(lambda module, _: torch.compile(module, backend="aot_eager"))
    ours = count(
        lambda module, counters: SwitchableModule.compile(module, trial, counters).compiled
    )
    assert (by_hand, ours) == (expected, expected)
