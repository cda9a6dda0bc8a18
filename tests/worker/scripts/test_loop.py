"""What is seen of a training loop from outside: where its steps end, its loader, and the modules that it trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sweeper.worker.scripts.loop import MIN_WATCHED, Lead, Loop, ScriptOverError
from sweeper.worker.scripts.program import EndOfScript

MANY = 100


def count_steps(seen: list[Loop], limit: int) -> Callable[[Loop], Lead]:
    """A lead that ends the script after `limit` steps of the loop."""

    def lead(loop: Loop) -> Lead:
        seen.append(loop)
        for _ in range(limit - 1):
            yield

    return lead


@pytest.fixture
def watch() -> Iterator[Callable[..., Loop]]:
    """Watches loops and runs them to their end."""
    loops: list[Loop] = []

    def run(script: Callable[[], None], limit: int = 10) -> Loop:
        errors: list[Exception | None] = []
        loop = Loop(count_steps([], limit), errors.append)
        loops.append(loop)
        with pytest.raises(EndOfScript):
            script()
        assert errors == [None]
        return loop

    yield run
    for loop in loops:
        loop.stop()


def step(optimizer: torch.optim.Optimizer, module: nn.Module, size: int = 4) -> None:
    optimizer.zero_grad()
    module(torch.ones(2, size)).sum().backward()
    optimizer.step()


def test_each_step_of_a_single_optimizer_is_one(watch: Callable[..., Loop]) -> None:
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters())
    steps = []

    def script() -> None:
        for index in range(MANY):
            steps.append(index)
            step(optimizer, module)

    loop = watch(script, limit=10)
    assert len(steps) == MIN_WATCHED + 10 - 1  # the last step that was watched is the first that counts
    assert (list(loop.modules.modules), loop.order) == ([module], ["SGD"])


@pytest.mark.parametrize(("critic_steps", "ends"), [(1, "generator"), (5, "generator")])
def test_a_step_ends_with_the_optimizer_that_steps_least(
    watch: Callable[..., Loop], critic_steps: int, ends: str
) -> None:
    parts = {"critic": nn.Linear(4, 1), "generator": nn.Linear(4, 4)}
    optimizers = {name: torch.optim.Adam(part.parameters()) for name, part in parts.items()}
    done: list[str] = []

    def script() -> None:
        for _ in range(MANY):
            for name in ["critic"] * critic_steps + ["generator"]:
                done.append(name)
                step(optimizers[name], parts[name])

    loop = watch(script, limit=4)
    assert done[-1] == ends
    assert loop.order == ["Adam", "Adam"]
    assert list(loop.modules.modules) == list(parts.values())


def test_a_wrapper_and_the_optimizer_within_it_step_once(watch: Callable[..., Loop]) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, _closure: None = None) -> None:
            self.inner.step()

    module = nn.Linear(4, 4)
    wrapper, steps = Wrapper(torch.optim.SGD(module.parameters())), []

    def script() -> None:
        for index in range(MANY):
            steps.append(index)
            step(wrapper, module)

    loop = watch(script, limit=2)
    assert len(steps) == MIN_WATCHED + 1
    assert loop.order == ["Wrapper"]


def test_forward_in_a_closure_is_seen(watch: Callable[..., Loop]) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(module.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    def script() -> None:
        for _ in range(MANY):
            optimizer.step(closure)

    assert list(watch(script).modules.modules) == [module]


def test_losses_and_frozen_modules_are_not_what_trains(watch: Callable[..., Loop]) -> None:
    frozen, module, loss = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4), nn.MSELoss()
    optimizer = torch.optim.SGD(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            optimizer.zero_grad()
            loss(module(frozen(torch.ones(2, 4))), torch.ones(2, 4)).backward()
            with torch.no_grad():
                copy.deepcopy(module)(torch.ones(2, 4))
            optimizer.step()

    loop = watch(script)
    assert list(loop.modules.modules) == [module]
    assert Path(__file__).name in loop.modules.modules[module]


def test_a_script_that_catches_everything_is_ended_again(watch: Callable[..., Loop]) -> None:
    module = nn.Linear(4, 4)
    optimizer, caught = torch.optim.SGD(module.parameters()), []

    def script() -> None:
        for _ in range(MANY):
            try:
                step(optimizer, module)
            except EndOfScript as end:  # as `except:` does
                caught.append(end)
                if len(caught) == 3:
                    raise

    watch(script)
    assert len(caught) == 3


def test_what_goes_wrong_in_the_lead_ends_the_script_and_is_told() -> None:
    def lead(_loop: Loop) -> Lead:
        yield
        raise ValueError("out of luck")

    errors: list[Exception | None] = []
    module = nn.Linear(4, 4)
    loop, optimizer = Loop(lead, errors.append), torch.optim.SGD(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            with suppress(Exception):  # a script's own
                step(optimizer, module)

    with pytest.raises(EndOfScript):
        script()
    loop.stop()
    assert [str(error) for error in errors] == ["out of luck"]


@pytest.mark.parametrize(
    ("steps", "said"), [(0, "no step of an optimizer of torch was seen"), (1, "1 step was seen"), (20, "20 steps were")]
)
def test_a_script_that_ends_by_itself_says_how_far_it_came(steps: int, said: str) -> None:
    errors: list[Exception | None] = []
    loop = Loop(count_steps([], MANY), errors.append)
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters())
    for _ in range(steps):
        step(optimizer, module)
    loop.finish()
    loop.finish()
    (error,) = errors
    assert isinstance(error, ScriptOverError)
    assert error.status == "eager_error"
    assert said in str(error)


def test_nothing_stays_in_torch() -> None:
    from torch.optim import optimizer as hooks
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterating

    def installed() -> tuple[object, ...]:
        kept = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks
        module_hooks = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
        counts = tuple(len(found) for found in (*kept, *module_hooks))
        return (*counts, Iterating.__next__, torch.save, torch.amp.GradScaler.step)

    before = installed()
    loop = Loop(count_steps([], 1), lambda _: None)
    assert installed() != before
    loop.stop()
    assert installed() == before


def test_batches_are_given_again_in_containers_of_their_own() -> None:
    loop = Loop(count_steps([], MANY), lambda _: None)
    try:
        loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=2)
        iterator = iter(loader)
        first = [next(iterator)[0].tolist() for _ in range(len(loader))]
        loop.loader.decide()
        assert loop.loader.num_recorded == len(first)
        loop.loader.replay(2)
        taken = [next(iterator) for _ in range(5)]
        assert [batch[0].tolist() for batch in taken] == [*first[-2:], *first[-2:], first[-2]]
        taken[0].clear()  # the script takes its batch apart
        assert next(iterator)[0].tolist() == first[-1]
        next(iterator)[0].zero_()  # and changes it in place
        next(iterator)
        assert next(iterator)[0].tolist() == first[-2]
        assert len(list(loader)) == len(first)  # a training accuracy, in the middle of the loop
        other = DataLoader(TensorDataset(torch.zeros(4)), batch_size=2)
        assert len(list(other)) == 2  # of another data set: an evaluation sees its own
        assert loop.count().others == len(first) + 2
    finally:
        loop.stop()


def test_saving_and_skipped_steps_are_counted(tmp_path) -> None:
    loop = Loop(count_steps([], MANY), lambda _: None)
    try:
        module = nn.Linear(4, 4)
        optimizer, scaler = torch.optim.SGD(module.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0)
        for index in range(MIN_WATCHED + 4):
            optimizer.zero_grad()
            loss = module(torch.ones(2, 4)).sum() * (float("inf") if index == MIN_WATCHED else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.save(module.state_dict(), tmp_path / "weights.pt")
        seen = loop.count()
        assert (seen.skipped, seen.saved, seen.steps) == (1, 1, 3)
    finally:
        loop.stop()
