"""Generators that compare trainings, resumed by the loop at the end of each step, as those of `leads` are.

`lead_trajectory` lets the compiled loop train, and runs each of its steps again in eager. `lead_training` lets one arm
train, and follows where it goes. Compiled code draws random numbers as eager does here, so it is another program than
the one that is timed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from sweeper.core.record import Trajectory
from sweeper.worker.scripts.follower import Follower, combine
from sweeper.worker.scripts.loop import Lead, ScriptOverError, run_steps
from sweeper.worker.scripts.reading import EAGER_STEPS, Reading
from sweeper.worker.scripts.training import LossWatch, SeedShift, TrainingWatch


@dataclass(frozen=True)
class Request:
    """Which training is asked for, and where eager's weights are kept for the compiled one."""

    arm: str
    shift: int
    weights: Path


def lead_trajectory(reading: Reading) -> Lead:
    """Run each step of a compiled training again in eager, from the same state."""
    modules = yield from _begin(reading)
    _compile(reading, modules)
    if not reading.arms.forms:
        reading.trajectory = Trajectory(0, None, "the script compiles functions, and no module")
        return
    followers: list[tuple[str, Follower]] = []
    for form in reading.arms.forms:
        follower = Follower(form.module, form.compiled, reading.job.trial, reading.device)
        followers.append((reading.name_module(form.module), follower))
        form.chosen = follower
    before = reading.loop.num_steps
    with reading.notes.enter("checking"), suppress(ScriptOverError):  # what there is of the steps is judged
        while reading.loop.num_steps - before < _count_steps(reading):
            yield
            for _, follower in followers:
                follower.compare()
    reading.arms.require_compiled()
    reading.trajectory = combine(followers, reading.loop.num_steps - before)


def lead_training(reading: Reading, request: Request, seeds: SeedShift, losses: LossWatch) -> Lead:
    """Follow one training. Seeds and losses are watched from the script's first line on."""
    modules = yield from _begin(reading)
    if request.arm == "compiled":
        _compile(reading, modules)
    losses.take()
    loop, steps = reading.loop, _count_steps(reading)
    watch = TrainingWatch(losses, loop.optimizers.values(), steps, request.weights)
    with reading.notes.enter("checking"), suppress(ScriptOverError):
        for _ in run_steps(steps):
            yield
            watch.add_step()
    if not watch.num_steps:
        raise ScriptOverError("the script ended by itself before a step of this training")
    training = watch.describe(request.arm, request.shift, seeds.has_seeded)
    reading.trajectory = Trajectory(0, None, trainings=(training,))


def _begin(reading: Reading) -> Generator[None, None, list[torch.nn.Module]]:
    modules = reading.begin()
    reading.loop.loader.records = False
    with reading.notes.enter("eager"):
        yield from run_steps(EAGER_STEPS)
    return modules


def _compile(reading: Reading, modules: Sequence[torch.nn.Module]) -> None:
    torch._inductor.config.fallback_random = True
    reading.arms.prepare(modules)
    reading.arms.switch("compiled")


def _count_steps(reading: Reading) -> int:
    steps = reading.job.trial.model.arguments["trajectory"]
    assert isinstance(steps, int)
    return steps
