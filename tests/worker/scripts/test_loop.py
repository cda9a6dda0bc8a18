"""What is seen of a training loop from outside: where its steps end, its loader, and the modules
that it trains.
"""

from __future__ import annotations

import collections
import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import torch
from loops import begin_loop
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from sweeper.worker.measurement.bench import Steps
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts.arms import ArmSwitch
from sweeper.worker.scripts.phases import prepare_loop
from sweeper.worker.scripts.runs import NOTHING
from sweeper.worker.scripts.watch.loader import copy_structure
from sweeper.worker.scripts.watch.loop import MIN_WATCHED, Loop, ScriptOverError
from sweeper.worker.scripts.watch.script_runner import EndOfScript

MANY = 100


def count_steps(seen: list[Loop], limit: int) -> Callable[[Loop], Steps[None]]:
    """A lead that ends the script after `limit` steps of the loop."""

    def lead(loop: Loop) -> Steps[None]:
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
        loop = begin_loop(count_steps([], limit), errors.append)
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
    # the last step that was watched is the first that counts
    assert len(steps) == MIN_WATCHED + 10 - 1
    assert (list(loop.modules.modules), loop.order) == ([module], ["SGD"])


@pytest.mark.parametrize("critic_steps", [1, 5])
def test_a_step_ends_with_the_optimizer_that_steps_least(
    watch: Callable[..., Loop], critic_steps: int
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
    assert done[-1] == "generator"
    assert loop.order == ["Adam", "Adam"]
    assert list(loop.modules.modules) == list(parts.values())


@pytest.mark.parametrize("steps", [MIN_WATCHED, MIN_WATCHED + 15])
def test_the_length_of_a_script_that_ends_by_itself_is_known(steps: int) -> None:
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters())
    errors: list[Exception | None] = []
    loop = begin_loop(count_steps([], MANY), errors.append)
    for _ in range(steps):
        step(optimizer, module)
    assert loop.length is None
    loop.finish()
    assert loop.length == steps
    (error,) = errors
    assert isinstance(error, ScriptOverError)


def test_of_two_optimizers_a_step_of_the_loop_counts_once() -> None:
    parts = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(part.parameters()) for part in parts]
    loop = begin_loop(count_steps([], MANY), lambda _: None)
    for _ in range(20):
        for optimizer, part in zip(optimizers, parts, strict=True):
            step(optimizer, part)
    loop.finish()
    assert loop.length == 20


def test_a_script_that_fails_or_is_ended_has_no_known_length(watch: Callable[..., Loop]) -> None:
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            step(optimizer, module)

    ended = watch(script, limit=10)
    ended.stop()
    ended.finish()
    assert ended.length is None
    failed = begin_loop(count_steps([], MANY), lambda _: None)
    for _ in range(20):
        step(optimizer, module)
    failed.finish(RuntimeError("the data set is gone"))
    assert failed.length is None


class Noisy(nn.Module):
    """Hands a rate of dropout to a function, as attention does."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout, self.linear = dropout, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.linear(x), self.dropout, self.training)


@pytest.mark.parametrize(
    ("module", "has_dropout"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), True),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1).eval()), False),
        (Noisy(0.1), True),
        (Noisy(0.0), False),
    ],
    ids=str,
)
def test_dropout_is_seen_where_it_is_in_training_mode(
    watch: Callable[..., Loop], module: nn.Module, has_dropout: bool
) -> None:
    optimizer = torch.optim.AdamW(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            step(optimizer, module)

    loop = watch(script)
    assert loop.modules.has_dropout is has_dropout
    assert loop.order == ["AdamW"]
    assert loop.modules.autocasts == set()


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_is_seen_around_a_module_and_inside_its_forward(
    watch: Callable[..., Loop], inside: bool
) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(module.parameters())
    autocast = torch.autocast("cpu", torch.bfloat16)
    if inside:  # as accelerate does
        module.forward = autocast(module.forward)  # type: ignore[method-assign]

    def script() -> None:
        for _ in range(MANY):
            with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
                step(optimizer, module)

    assert watch(script).modules.autocasts == {"torch.bfloat16"}


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


def test_what_goes_wrong_in_a_phase_ends_the_script_and_is_told() -> None:
    def lead(_loop: Loop) -> Steps[None]:
        yield
        raise ValueError("out of luck")

    errors: list[Exception | None] = []
    module = nn.Linear(4, 4)
    loop, optimizer = begin_loop(lead, errors.append), torch.optim.SGD(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            with suppress(Exception):  # a script's own
                step(optimizer, module)

    with pytest.raises(EndOfScript):
        script()
    loop.stop()
    assert [str(error) for error in errors] == ["out of luck"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, "no step of an optimizer of torch was seen"),
        (1, "1 step was seen"),
        (20, "20 steps were"),
    ],
)
def test_a_script_that_ends_by_itself_says_how_far_it_came(steps: int, said: str) -> None:
    errors: list[Exception | None] = []
    loop = begin_loop(count_steps([], MANY), errors.append)
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
        module_hooks = (
            nn.modules.module._global_forward_hooks,
            nn.modules.module._global_forward_pre_hooks,
        )
        counts = tuple(len(found) for found in (*kept, *module_hooks))
        return (*counts, Iterating.__next__, torch.save, torch.amp.GradScaler.step)

    before = installed()
    loop = begin_loop(count_steps([], 1), lambda _: None)
    assert installed() != before
    loop.stop()
    assert installed() == before


def test_batches_are_given_again_in_containers_of_their_own() -> None:
    loop = begin_loop(count_steps([], MANY), lambda _: None)
    try:
        loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=2)
        iterator = iter(loader)

        def take() -> torch.Tensor:
            return next(iterator)[0]

        first = [take().tolist() for _ in range(len(loader))]
        loop.loader.decide()
        assert loop.loader.num_recorded == len(first)
        loop.loader.replay(2)
        assert [take().tolist() for _ in range(5)] == [*first[-2:], *first[-2:], first[-2]]
        iterator = iter(loader)  # another epoch, by the same line of the script
        assert take().tolist() == first[-1]
        take().zero_()  # the script changes it in place
        take()
        assert take().tolist() == first[-2]
        assert len(list(loader)) == len(first)  # a training accuracy, in the middle of the loop
        other = DataLoader(TensorDataset(torch.zeros(4)), batch_size=2)
        assert len(list(other)) == 2  # of another data set: an evaluation sees its own
        assert loop.count().others == len(first) + 2
    finally:
        loop.stop()


def test_epochs_are_those_of_the_training_loader() -> None:
    """A loader of other rows of the same kind of data is an evaluation."""
    loop = begin_loop(count_steps([], MANY), lambda _: None)
    try:
        data = TensorDataset(torch.arange(4.0))
        training, evaluation = DataLoader(data), DataLoader(data, batch_size=2)

        def train() -> None:
            for _ in training:
                pass

        def evaluate() -> None:
            for _ in evaluation:
                pass

        train()
        loop.loader.decide()
        train()
        evaluate()
        assert (loop.count().epochs, loop.count().others) == (1, 2)
        train()
        train()
        assert (loop.count().epochs, loop.count().others) == (3, 2)
    finally:
        loop.stop()


def test_a_loop_that_is_timed_keeps_no_batch_from_the_first_on() -> None:
    """A fork maps all memory, so each batch that is kept makes the start of workers slower, at each
    epoch.
    """
    kept = []
    for is_timed in (False, True):
        loop = begin_loop(count_steps([], MANY))
        if is_timed:
            prepare_loop(loop, cast("ArmSwitch", None), cast("ProcessLog", None), "eager", NOTHING)
        try:
            iterator = iter(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2))
            kept.append(weakref.ref(next(iterator)[0])() is not None)
        finally:
            loop.stop()
    assert kept == [True, False]


def test_a_batch_is_given_in_containers_of_its_own() -> None:
    tensor = torch.ones(2)
    given = {"ids": tensor, "more": [tensor, (tensor, "text")]}
    copied = copy_structure(given)
    copied["more"].clear()
    del copied["ids"]
    assert given == {"ids": tensor, "more": [tensor, (tensor, "text")]}
    assert copy_structure(given)["ids"] is tensor
    counts = collections.defaultdict(list, ids=tensor)
    assert copy_structure(counts)["ids"] is tensor


def test_an_optimizer_that_steps_no_more_is_given_up(watch: Callable[..., Loop]) -> None:
    """The first phase of a training has an optimizer of its own."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    of_first, of_second = torch.optim.SGD(first.parameters()), torch.optim.SGD(second.parameters())

    def script() -> None:
        for _ in range(MIN_WATCHED):
            step(of_first, first)
        for _ in range(MANY):
            step(of_second, second)

    assert watch(script, limit=4).order == ["SGD", "SGD"]


def test_a_step_that_fails_does_not_hide_the_next_ones(watch: Callable[..., Loop]) -> None:
    class Failing(torch.optim.SGD):
        count = 0

        def step(self, closure: None = None) -> None:
            self.count += 1
            if self.count % 3 == 0:
                raise RuntimeError("out of memory")
            super().step(closure)

    module = nn.Linear(4, 4)
    optimizer = Failing(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            with suppress(RuntimeError):
                step(optimizer, module)

    watch(script, limit=4)


def test_checkpointed_blocks_and_parts_are_no_modules_of_their_own(
    watch: Callable[..., Loop],
) -> None:
    block, head = nn.Linear(4, 4), nn.Linear(4, 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = block, head

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.block, inputs, use_reentrant=False))

    module = Model()
    optimizer = torch.optim.SGD(module.parameters())

    def script() -> None:
        for _ in range(MANY):
            optimizer.zero_grad()
            (module(torch.ones(2, 4)).sum() + head(torch.ones(2, 4)).sum()).backward()
            optimizer.step()

    assert list(watch(script).modules.modules) == [module]


def test_saving_and_skipped_steps_are_counted(tmp_path) -> None:
    loop = begin_loop(count_steps([], MANY), lambda _: None)
    try:
        module = nn.Linear(4, 4)
        optimizer, scaler = (
            torch.optim.SGD(module.parameters()),
            torch.amp.GradScaler("cpu", init_scale=2.0),
        )
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
