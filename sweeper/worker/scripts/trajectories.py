"""The generator that compares a training step by step, resumed by the loop at the end of each
step, as those of `phases` are.

Compiled code draws random numbers as eager does here, so it is another program than the one that is
timed.
"""

from contextlib import suppress

import torch

from sweeper.core.record import Trajectory
from sweeper.worker.measurement.bench import Steps

from .description import name_module
from .loop import ScriptOverError, run_steps
from .phases import EAGER_STEPS
from .setup import ScriptSetup
from .step_replayer import StepReplayer, combine


def compare_trajectory(setup: ScriptSetup) -> Steps[None]:
    """Run each step of a compiled training again in eager, from the same state."""
    modules = setup.begin()
    setup.loop.loader.keep_none()
    with setup.notes.enter("eager"):
        yield from run_steps(EAGER_STEPS)
    torch._inductor.config.fallback_random = True
    setup.arms.prepare(modules)
    setup.arms.switch("compiled")
    if not setup.arms.forms:
        setup.trajectory = Trajectory(0, None, "the script compiles functions, and no module")
        return
    replayers: list[tuple[str, StepReplayer]] = []
    for form in setup.arms.forms:
        replayer = StepReplayer(form.module, form.compiled, setup.trial, setup.device)
        replayers.append((name_module(setup, form.caller), replayer))
        form.chosen = replayer
    before, steps = setup.loop.num_steps, setup.trial.model.arguments["trajectory"]
    assert isinstance(steps, int)
    # what there is of the steps is judged
    with setup.notes.enter("checking"), suppress(ScriptOverError):
        while setup.loop.num_steps - before < steps:
            yield
            for _, replayer in replayers:
                replayer.compare()
    setup.arms.require_compiled()
    setup.trajectory = combine(replayers, setup.loop.num_steps - before)
