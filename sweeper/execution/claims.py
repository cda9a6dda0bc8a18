"""Claims: what a worker says that it has measured, against what the driver knows of it."""

from collections.abc import Iterator
from itertools import pairwise

from sweeper.core.protocol import Outcome
from sweeper.core.record import ARMS, Process
from sweeper.core.settings import Measure

MIN_STEP_S = 1e-6  # to call a module from Python takes longer
SLACK_S = 0.1  # the kernel counts the age of a process in ticks


def find_impossible(
    outcome: Outcome, measure: Measure, life_s: float, timed_code: str | None = None
) -> str | None:
    """Say which claim of a worker that lived for `life_s`, by the clock of the driver, cannot be
    true; None where all can. Code with the fingerprint `timed_code` need not be timed.
    """
    process = outcome.process
    if outcome.status == "ok" and not (process and process.step_s("compiled")):
        code = process.code_fingerprint if process and not process.rounds else None
        if code is None or code != timed_code:
            return "it is ok and has no round that counts"
    if process is None:
        return None
    for name, claimed_s in _list_times(process):
        if claimed_s > life_s + SLACK_S:
            return f"{name} took {claimed_s:g} s, and it lived for {life_s:.3g} s"
    for arm in ARMS:
        least_s = min(process.blocks_s(arm), default=1.0) / (process.steps_per_block or 1)
        if least_s < MIN_STEP_S:
            return f"a step of {arm} took {least_s:g} s, and no step takes less than a microsecond"
    orders = [item.order for item in process.rounds if item.void is None]
    if len(orders) > measure.rounds and not process.script:  # which may have shorter blocks
        return f"{len(orders)} of its rounds count, and it was asked for {measure.rounds}"
    if any(one == other for one, other in pairwise(orders)):
        return "its rounds do not begin with each arm in turn"
    return None


def _list_times(process: Process) -> Iterator[tuple[str, float]]:
    """What took place one after the other in the life of the process, with its wall seconds."""
    yield (
        "its first steps and its rounds together",
        sum(process.first_steps_s) + process.all_blocks_s,
    )
    yield "its compiling", process.compile_s or 0.0
    yield "the way to its first step", process.time_to_first_step_s or 0.0
    yield "its waiting", process.waited_s or 0.0
    for phase, phase_s in process.phases_s.items():
        yield f"its phase {phase}", phase_s
    if script := process.script:
        loops = [run.steps * run.step_s for run in (script.loop_eager, script.loop_compiled) if run]
        yield "the loops of its script together", sum(loops)
