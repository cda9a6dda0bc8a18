"""The generator that compares a training step by step, resumed by the loop at the end of each
step.
"""

from contextlib import suppress

import torch

from sweeper.core.record import Trajectory
from sweeper.worker.measurement.bench import Steps
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts.description import name_module
from sweeper.worker.scripts.subject import EAGER_STEPS, ScriptSubject
from sweeper.worker.scripts.watch.loop import ScriptOverError, run_steps

from .step_replayer import StepReplayer, combine


def compare_trajectory(subject: ScriptSubject, log: ProcessLog) -> Steps[None]:
    """Run each step of a compiled training again in eager, from the same state.

    Compiled code draws random numbers as eager does here, so it is another program than the one
    that is timed.
    """
    subject.loop.loader.keep_none()
    with log.enter("eager"):
        yield from run_steps(EAGER_STEPS)
    with torch._inductor.config.patch(fallback_random=True):
        subject.compile(log)
        subject.switch.choose("compiled")
        if subject.switch.forms:
            trajectory = yield from _compare(subject, log)
        else:
            why = "the script compiles functions, and no module"
            trajectory = Trajectory(0, None, why)
        log.add_to_script(trajectory=trajectory)


def _compare(subject: ScriptSubject, log: ProcessLog) -> Steps[Trajectory]:
    loop, trial = subject.loop, subject.trial
    replayers: list[tuple[str, StepReplayer]] = []
    for form in subject.switch.forms:
        replayer = StepReplayer(form.module, form.compiled, trial, subject.device)
        replayers.append((name_module(loop, form.caller), replayer))
        form.chosen = replayer
    before, steps = loop.num_steps, trial.model.arguments["trajectory"]
    assert isinstance(steps, int)
    # what there is of the steps is judged
    with log.enter("checking"), suppress(ScriptOverError):
        while loop.num_steps - before < steps:
            yield
            for _, replayer in replayers:
                replayer.compare()
    subject.require_compiled()
    return combine(replayers, loop.num_steps - before)
