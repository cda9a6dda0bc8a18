"""What is seen of a training loop from outside: where its steps end, its loader, and the modules
that it trains.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from loops import begin_loop
from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.worker.measurement.bench import Steps
from sweeper.worker.scripts.watch.loop import LATE_WATCHED, MIN_WATCHED, Loop, ScriptOverError
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


def name_optimizers(loop: Loop) -> list[str]:
    return [type(optimizer).__name__ for optimizer in loop.optimizers]


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
    assert len(steps) == LATE_WATCHED + 10 - 1
    assert (list(loop.modules.modules), name_optimizers(loop)) == ([module], ["SGD"])


@pytest.mark.parametrize("critic_steps", [1, 5, 10, 40])
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

    loop = watch(script, limit=12)
    assert len(loop.late) == (critic_steps == 40)
    assert done[-1] == ("critic" if loop.late else "generator")
    assert name_optimizers(loop) == (["Adam"] if loop.late else ["Adam", "Adam"])
    assert list(loop.modules.modules) == list(parts.values())[: len(loop.optimizers)]


@pytest.mark.parametrize("count", [8, 12, 40])
def test_a_step_is_one_turn_of_however_many_optimizers(
    watch: Callable[..., Loop], count: int
) -> None:
    layers = [nn.Linear(4, 4) for _ in range(count)]
    optimizers = [torch.optim.SGD(layer.parameters()) for layer in layers]
    done: list[int] = []

    def script() -> None:
        for _ in range(MANY):
            nn.Sequential(*layers)(torch.ones(2, 4)).sum().backward()
            for number, optimizer in enumerate(optimizers):
                done.append(number)
                optimizer.step()

    loop = watch(script, limit=3)
    assert (len(loop.optimizers), done[-1]) == (count, count - 1)


def test_a_slow_loop_is_not_watched_for_longer_than_it_has_to_be(
    watch: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    module = nn.Linear(4, 4)
    optimizer, steps = torch.optim.SGD(module.parameters()), []

    def script() -> None:
        for index in range(MANY):
            steps.append(index)
            step(optimizer, module)

    loop = watch(script, limit=1)
    assert len(steps) == loop.watched == MIN_WATCHED


def test_a_later_run_decides_when_the_first_one_did(watch: Callable[..., Loop]) -> None:
    parts = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(part.parameters()) for part in parts]
    errors: list[Exception | None] = []
    loop = begin_loop(count_steps([], 2), errors.append)
    loop.watched = 14
    for index in range(13):
        step(optimizers[index % 7 // 6], parts[index % 7 // 6])
    assert (loop.num_steps, errors) == (0, [])
    step(optimizers[1], parts[1])
    assert (loop.num_watched, loop.num_steps, errors) == (14, 0, [])
    for _ in range(6):
        step(optimizers[0], parts[0])
    with pytest.raises(EndOfScript):
        step(optimizers[1], parts[1])
    assert (loop.num_watched, loop.num_steps) == (14, 1)
    loop.stop()


@pytest.mark.parametrize("steps", [LATE_WATCHED, LATE_WATCHED + 15])
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
    assert name_optimizers(loop) == ["AdamW"]
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
    assert len(steps) == LATE_WATCHED + 1
    assert name_optimizers(loop) == ["Wrapper"]


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
        (1, "1 step was seen, and up to 32 are watched before the first one is timed; give it"),
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


def test_an_optimizer_that_steps_no_more_is_given_up(watch: Callable[..., Loop]) -> None:
    """The first phase of a training has an optimizer of its own."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    of_first, of_second = torch.optim.SGD(first.parameters()), torch.optim.SGD(second.parameters())

    def script() -> None:
        for _ in range(LATE_WATCHED):
            step(of_first, first)
        for _ in range(MANY):
            step(of_second, second)

    assert name_optimizers(watch(script, limit=4)) == ["SGD", "SGD"]


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


def test_a_part_that_only_the_script_calls_is_a_module_of_its_own(
    watch: Callable[..., Loop],
) -> None:
    """As in a GAN whose networks are parts of one object, which calls the generator alone."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = generator, critic

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.generator(inputs)

    both = Both()
    optimizer = torch.optim.SGD(both.parameters())

    def script() -> None:
        for _ in range(MANY):
            optimizer.zero_grad()
            both.critic(both(torch.ones(2, 4))).sum().backward()
            optimizer.step()

    assert list(watch(script).modules.modules) == [both, critic]


def test_saving_and_skipped_steps_are_counted(tmp_path) -> None:
    loop = begin_loop(count_steps([], MANY), lambda _: None)
    try:
        module = nn.Linear(4, 4)
        optimizer, scaler = (
            torch.optim.SGD(module.parameters()),
            torch.amp.GradScaler("cpu", init_scale=2.0),
        )
        for index in range(LATE_WATCHED + 4):
            optimizer.zero_grad()
            loss = module(torch.ones(2, 4)).sum() * (float("inf") if index == LATE_WATCHED else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.save(module.state_dict(), tmp_path / "weights.pt")
        seen = loop.count()
        assert (seen.skipped, seen.saved, seen.steps) == (1, 1, 3)
    finally:
        loop.stop()
