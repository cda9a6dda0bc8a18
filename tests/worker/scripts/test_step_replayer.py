"""A module that is followed through a training: the training stays as it is, and faults in the
module are found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.core.record import Trajectory
from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker.accuracy.trajectory import MOVED, Differences
from sweeper.worker.scripts.trajectory.step_replayer import StepReplayer, combine

CPU = torch.device("cpu")
TRIAL = Trial(Model("script", "train.py"), 1, Labels("train.py", "own"))
Make = Callable[[nn.Module], Callable[..., Any]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Steps this small take a hundred times as long where threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    """A model with buffers, dropout, and a part that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.again, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.again(self.drop(self.norm(self.first(inputs)).relu()))
        return {"logits": self.head(self.again(hidden).tanh()), "unused": hidden}


def as_it_is(module: nn.Module) -> Callable[..., Any]:
    return lambda *inputs: module(*inputs)


def train(
    make: Make, steps: int = 25, follow: bool = True, **options: Any
) -> tuple[nn.Module, StepReplayer]:
    """Train for some steps, of two batches each, with clipped gradients."""
    torch.manual_seed(0)
    module = options.get("model", Net)()
    replayer = StepReplayer(module, make(module), TRIAL, CPU)
    call = replayer if follow else make(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            inputs = torch.randn(8, 6)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.get("autocast", False)):
                output = call(inputs)
            logits = output["logits"].float()
            nn.functional.cross_entropy(logits, (inputs[:, 0] > 0).long()).backward()
            inputs.zero_()  # its own business
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        replayer.compare()
    return module, replayer


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_that_is_followed_is_the_same_training(autocast: bool) -> None:
    plain, _ = train(as_it_is, follow=False, autocast=autocast)
    followed, replayer = train(as_it_is, autocast=autocast)
    other = followed.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in plain.state_dict().items())
    found = replayer.judge()
    assert (found.passed, found.samples, found.value) == (True, 50, 0.0)


def test_each_moved_arm_of_each_call_has_a_noise_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []
    add = Differences.add

    def note(self: Differences, arms: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        seen.extend(
            arms[arm]["gradient of head.weight"] - arms["eager"]["gradient of head.weight"]
            for arm in MOVED
        )
        add(self, arms)

    monkeypatch.setattr(Differences, "add", note)
    train(as_it_is, steps=2)
    assert len(seen) == 8
    noises = torch.nn.functional.normalize(torch.stack(seen).flatten(1))
    assert (noises @ noises.T - torch.eye(8)).abs().max() < 0.9


def drop_bias(module: nn.Module) -> Callable[..., Any]:
    """The gradient of a bias is dropped."""
    assert isinstance(module.head, nn.Linear)
    bias = module.head.bias

    def call(*inputs: torch.Tensor) -> Any:
        bias.requires_grad_(False)
        try:
            return module(*inputs)
        finally:
            bias.requires_grad_()

    return call


def keep_statistics(module: nn.Module) -> Callable[..., Any]:
    """Running statistics are not written."""
    buffers = dict(module.named_buffers())

    def call(*inputs: torch.Tensor) -> Any:
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        output = module(*inputs)
        for name, buffer in buffers.items():
            buffer.data.copy_(before[name])
        return output

    return call


def scale_output(module: nn.Module, factor: float = 1.001) -> Callable[..., Any]:
    return lambda *inputs: {**(found := module(*inputs)), "logits": found["logits"] * factor}


@pytest.mark.parametrize(
    ("make", "worst"),
    [
        (drop_bias, "gradient of head.bias"),
        (keep_statistics, "change of buffer norm."),
        (scale_output, ""),
    ],
)
def test_faults_are_found(make: Make, worst: str) -> None:
    _, replayer = train(make)
    found = replayer.judge()
    assert found.passed is False
    assert worst in str(found.worst)


def test_code_that_draws_other_random_numbers_is_not_judged() -> None:
    def draw(module: nn.Module) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            torch.rand(3)
            return module(*inputs)

        return call

    _, replayer = train(draw)
    assert replayer.judge().unknown == "compiled code draws other random numbers than eager"


class Checkpointed(Net):
    """Blocks under reentrant checkpoints, of which the first one's input is no result of a trained
    layer.
    """

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = checkpoint(self.first, inputs.detach().requires_grad_(), use_reentrant=True)
        hidden = checkpoint(self.again, hidden, use_reentrant=True)
        assert isinstance(hidden, torch.Tensor)
        return {"logits": self.head(hidden)}


def test_reentrant_checkpoints_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    add = Differences.add

    def note(self: Differences, arms: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        seen.append(arms["eager"]["gradient of first.weight"].norm())
        add(self, arms)

    monkeypatch.setattr(Differences, "add", note)
    _, replayer = train(as_it_is, model=Checkpointed)
    assert (replayer.judge().passed, replayer.judge().value) == (True, 0.0)
    assert all(norm > 0 for norm in seen)


def test_a_module_whose_gradients_start_something_is_not_repeated() -> None:
    """As an optimizer that steps in the backward pass."""
    module = nn.Linear(4, 1)
    steps: list[int] = []
    module.weight.register_post_accumulate_grad_hook(lambda _: steps.append(1))
    replayer = StepReplayer(module, as_it_is(module), TRIAL, CPU)
    replayer(torch.randn(8, 4)).mean().backward()
    replayer.compare()
    assert len(steps) == 1
    assert "parameters have hooks" in str(replayer.judge().unknown)


def test_inputs_that_pass_gradients_on_are_compared() -> None:
    """As the discriminator of a GAN passes them on to the generator."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 1.1 * gradients[0]

    replayer = StepReplayer(second, lambda inputs: second(Scaled.apply(inputs)), TRIAL, CPU)
    for _ in range(25):
        replayer(first(torch.randn(8, 4))).mean().backward()
        replayer.compare()
    found = replayer.judge()
    assert (found.passed, found.worst) == (False, "gradient at input 1")


class Loss(nn.Module):
    """A model that computes its loss, under autocast of its own, and keeps an average in a new
    tensor each time.
    """

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 16), nn.Linear(16, 1)
        self.register_buffer("average", torch.zeros(16))
        self.register_buffer("mask", torch.full((6,), -torch.inf))
        self.register_buffer("shared", torch.zeros(1).expand(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.first(inputs).relu_()
        self.average = 0.9 * self.average + 0.1 * hidden.float().mean(0).detach()
        loss: torch.Tensor = (self.head(hidden.float()) - inputs[:, :1]).square().mean()
        return loss


def test_a_buffer_that_is_replaced_and_autocast_inside_of_the_module() -> None:
    steps, ends = 25, []
    for follow in (False, True):
        torch.manual_seed(0)
        module = Loss()
        replayer = StepReplayer(module, as_it_is(module), TRIAL, CPU)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            (replayer if follow else module)(torch.randn(8, 6)).backward()
            optimizer.step()
            replayer.compare()
        ends.append(module.average)
    assert torch.equal(*ends)
    found = replayer.judge()
    assert (found.passed, found.samples) == (True, steps)
    assert replayer._computed == "bfloat16"


def test_calls_of_several_kinds_and_a_module_that_is_frozen_for_some() -> None:
    """The discriminator of a GAN: on real and fake data, then frozen, with gradients for its
    input.
    """
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1))
    replayer = StepReplayer(judge, as_it_is(judge), TRIAL, CPU)
    for _ in range(25):
        fake = maker(torch.randn(8, 4))
        (replayer(torch.randn(8, 4)).mean() - replayer(fake.detach()).mean()).backward()
        judge.requires_grad_(False)
        replayer(fake).mean().backward()
        replayer.compare()
        assert not any(item.requires_grad for item in judge.parameters())
        judge.requires_grad_()
    found = replayer.judge()
    assert (found.passed, found.samples) == (True, 75)


def test_calls_that_get_no_gradients_make_room() -> None:
    module = nn.Linear(4, 1)
    replayer = StepReplayer(module, as_it_is(module), TRIAL, CPU)
    for _ in range(20):
        for _ in range(6):
            replayer(torch.randn(8, 4))
        replayer(torch.randn(8, 4)).mean().backward()
        replayer.compare()
    assert (replayer.judge().passed, replayer.judge().samples) == (True, 20)


def test_a_part_that_is_followed_is_not_followed_twice() -> None:
    part = nn.Linear(4, 4)
    inner = StepReplayer(part, as_it_is(part), TRIAL, CPU)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = inner(inputs)
            return output

    whole = Whole()
    outer = StepReplayer(whole, as_it_is(whole), TRIAL, CPU)
    for _ in range(20):
        outer(torch.randn(8, 4)).mean().backward()
        for replayer in (outer, inner):
            replayer.compare()
    assert [replayer.judge().samples for replayer in (outer, inner)] == [20, 20]


def test_an_output_that_the_loss_does_not_need() -> None:
    """As the logits are, where a model of transformers computes its loss; compiled code hands back
    no gradient.
    """

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(False)
            return inputs.clone(), inputs.clone()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> torch.Tensor:  # type: ignore[override]
            used: torch.Tensor = gradients[0]
            return used

    module = nn.Linear(4, 2)
    replayer = StepReplayer(module, lambda inputs: Both.apply(module(inputs)), TRIAL, CPU)
    replayer(torch.randn(8, 4))[0].mean().backward()
    assert [sorted(call.gradients) for call in replayer._calls] == [[0]]


def test_the_worst_module_speaks_for_the_loop() -> None:
    right, wrong = train(as_it_is)[1], train(drop_bias)[1]
    found = combine([("Net", right), ("Net (train.py:3)", wrong)], 25)
    assert (found.passed, found.worst) == (False, "gradient of head.bias of Net (train.py:3)")
    assert (found.samples, found.steps) == (100, 25)
    scaled = train(lambda module: scale_output(module, 1 + 1e-6))[1]
    assert combine([("a", right), ("b", scaled)], 25).value
    nothing = StepReplayer(nn.Linear(1, 1), lambda: None, TRIAL, CPU)
    assert combine([("a", right), ("b", nothing)], 25) == Trajectory(
        50, None, "no gradient went through the module", steps=25
    )


def test_a_module_that_draws_from_python_is_compared() -> None:
    """As one that leaves layers out at random."""

    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(inputs) * random.random()}

    _, replayer = train(as_it_is, model=Skips)
    found = replayer.judge()
    assert (found.passed, found.value) == (True, 0.0)
