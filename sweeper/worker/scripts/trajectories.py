"""Generators that compare trainings, resumed by the loop at the end of each step, as those of
`leads` are.

`lead_trajectory` lets the compiled loop train, and runs each of its steps again in eager.
`lead_training` lets one arm train, and follows where it goes. Compiled code draws random numbers as
eager does here, so it is another program than the one that is timed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from sweeper.core.record import Trajectory
from sweeper.worker.scripts.description import name_module
from sweeper.worker.scripts.follower import Follower, combine
from sweeper.worker.scripts.leads import EAGER_STEPS
from sweeper.worker.scripts.loop import Lead, ScriptOverError, run_steps
from sweeper.worker.scripts.setup import ScriptSetup
from sweeper.worker.scripts.training import LossWatch, SeedShift, TrainingWatch


@dataclass(frozen=True)
class Request:
    """Which training is asked for, and where eager's weights are kept for the compiled one."""

    arm: str
    shift: int
    weights: Path


def lead_trajectory(setup: ScriptSetup) -> Lead:
    """Run each step of a compiled training again in eager, from the same state."""
    modules = yield from _begin(setup)
    _compile(setup, modules)
    if not setup.arms.forms:
        setup.trajectory = Trajectory(0, None, "the script compiles functions, and no module")
        return
    followers: list[tuple[str, Follower]] = []
    for form in setup.arms.forms:
        follower = Follower(form.module, form.compiled, setup.trial, setup.device)
        followers.append((name_module(setup, form.caller), follower))
        form.chosen = follower
    before = setup.loop.num_steps
    # what there is of the steps is judged
    with setup.notes.enter("checking"), suppress(ScriptOverError):
        while setup.loop.num_steps - before < _count_steps(setup):
            yield
            for _, follower in followers:
                follower.compare()
    setup.arms.require_compiled()
    setup.trajectory = combine(followers, setup.loop.num_steps - before)


def lead_training(
    setup: ScriptSetup, request: Request, seeds: SeedShift, losses: LossWatch
) -> Lead:
    """Follow one training. Seeds and losses are watched from the script's first line on."""
    modules = yield from _begin(setup)
    if request.arm == "compiled":
        _compile(setup, modules)
    losses.take()
    loop, steps = setup.loop, _count_steps(setup)
    watch = TrainingWatch(losses, loop.optimizers.values(), steps, request.weights)
    with setup.notes.enter("checking"), suppress(ScriptOverError):
        for _ in run_steps(steps):
            yield
            watch.add_step()
    if not watch.num_steps:
        raise ScriptOverError("the script ended by itself before a step of this training")
    training = watch.describe(request.arm, request.shift, seeds.has_seeded)
    setup.trajectory = Trajectory(0, None, trainings=(training,))


def _begin(setup: ScriptSetup) -> Generator[None, None, list[torch.nn.Module]]:
    modules = setup.begin()
    setup.loop.loader.keep_none()
    with setup.notes.enter("eager"):
        yield from run_steps(EAGER_STEPS)
    return modules


def _compile(setup: ScriptSetup, modules: Sequence[torch.nn.Module]) -> None:
    torch._inductor.config.fallback_random = True
    setup.arms.prepare(modules)
    setup.arms.switch("compiled")


def _count_steps(setup: ScriptSetup) -> int:
    steps = setup.trial.model.arguments["trajectory"]
    assert isinstance(steps, int)
    return steps
