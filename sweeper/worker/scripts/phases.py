"""What is measured while a script runs: generators that the loop resumes at the end of each of its
steps.

`compare_steps` compares both arms in one process: blocks of K steps take turns, on recorded batches
of the script's loader, so the times leave out loading and other shapes. `run_loop` runs one arm
throughout, loader and all, as the script does by itself: batches that were fetched ahead in one
arm's time must not be used up in the other's.
"""

from functools import partial

from sweeper.core.record import Accuracy, HostState, PerArm
from sweeper.worker.compilation import artifacts
from sweeper.worker.failures import EagerError, UnsteadyError
from sweeper.worker.measurement.bench import (
    FIRST_STEPS,
    MIN_BLOCK_STEPS,
    STEPS_BEFORE_BLOCK,
    Steps,
    time_first_steps,
)
from sweeper.worker.monitoring import host_monitor
from sweeper.worker.session import take_readings, time_rounds, warm_up

from .check import check_modules
from .loop import Loop, ScriptOverError, run_steps
from .loop_time import NOTHING, LoopFacts, time_loop
from .setup import ScriptSetup

EAGER_STEPS = 4  # of runs that begin in eager; they show how many batches a step takes
# recorded batches that blocks go through; each new shape may have to be compiled
MAX_CYCLE_BATCHES = 8
SETTLED_STEPS = 3  # in a row without a compilation, before a compiled loop is timed


def compare_steps(setup: ScriptSetup) -> Steps[None]:
    """Compare the steps of both arms; the script ends when the generator does."""
    notes, arms, loop = setup.notes, setup.arms, setup.loop
    modules = setup.begin()
    with notes.enter("eager"):
        before = loop.loader.num_batches
        yield from run_steps(EAGER_STEPS)
        per_step = (loop.loader.num_batches - before) / EAGER_STEPS
        setup.bench.num_sizes = _start_replay(loop, per_step)
    with notes.enter("compiling"):
        notes.counters = arms.counters
        arms.prepare(modules)
        host = host_monitor.HostMonitor()
        # Single steps have to become steady: a script may not have enough of them to go through its
        # batches five times.
        yield from time_first_steps(
            setup.bench, setup.compiled, lambda times: notes.add(first_steps_s=tuple(times))
        )
        notes.add(host=HostState(host.share_busy_by_others()))
        arms.require_compiled()
        notes.add(**artifacts.read_fingerprints(), compile_parts_s=artifacts.read_parts_s())
    with notes.enter("warming"):
        yield from warm_up(setup, notes)
    try:
        with notes.enter("measuring"):
            yield from _time_rounds(setup)
        yield from take_readings(setup, notes)
        arms.switch("eager")
        yield from check_modules(setup.job, setup.device, arms.compiled_forms(), notes)
    except ScriptOverError as error:
        if not notes.process.blocks_s("eager"):
            steps = 2 * (notes.process.steps_per_block or 1)
            message = f"{error}; it ended before its first round of {steps} steps was complete"
            raise EagerError(message) from error
        arms.require_compiled()
        _note_missing(setup)


def _note_missing(setup: ScriptSetup) -> None:
    """Say of each reading that the script left no steps for why it is missing."""
    process, why = setup.notes.process, "the script ended before"
    setup.notes.add(accuracy=Accuracy(None, None, f"{why} its modules could be judged"))
    wanted = {"energy": process.energy_j} if setup.measure.energy else {}
    if setup.device.type == "cuda":
        wanted |= {"device_time": process.device_time_s, "host_time": process.host_step_s}
    for name, figure in wanted.items():
        if figure is None and getattr(process, f"{name}_missing") is None:
            setup.notes.add(**{f"{name}_missing": why})


def _start_replay(loop: Loop, per_step: float) -> int:
    """Give recorded batches again from now on; the number of steps after which they begin again."""
    if not loop.loader.num_recorded or per_step <= 0:
        return 1
    size = max(round(per_step), 1)
    cycle = max(min(MAX_CYCLE_BATCHES, loop.loader.num_recorded) // size, 1)
    loop.loader.replay(cycle * size)
    return cycle


def _time_rounds(setup: ScriptSetup) -> Steps[None]:
    _shorten_blocks(setup)
    try:
        try:
            yield from time_rounds(setup, setup.notes)
        except UnsteadyError as error:
            if not _shorten_blocks(setup):
                raise UnsteadyError(f"{error}{_explain_interval(setup)}") from error
            setup.notes.add(rounds=tuple(item for item in setup.notes.process.rounds if item.void))
            yield from time_rounds(setup, setup.notes)
    finally:
        if found := setup.monitor.memory:
            peaks = {arm: item.allocator_peak_bytes for arm, item in found.items()}
            in_use = {arm: item.in_use_bytes for arm, item in found.items()}
            setup.notes.add(allocator_peak_bytes=PerArm(**peaks), memory_bytes=PerArm(**in_use))
    setup.arms.require_compiled()


def _shorten_blocks(setup: ScriptSetup) -> bool:
    """Shorten blocks until a round fits between two evaluations or saved files of the script;
    whether they are now.
    """
    steps = setup.notes.process.steps_per_block
    most = setup.loop.interruptions.fit_block(STEPS_BEFORE_BLOCK)
    if steps is None or most is None:
        return False
    most -= most % setup.bench.num_sizes
    if not _least_steps(setup) <= most < steps:
        return False
    setup.notes.add(steps_per_block=most)
    return True


def _least_steps(setup: ScriptSetup) -> int:
    return setup.bench.round_up(setup.measure.block_steps or MIN_BLOCK_STEPS[setup.device.type])


def _explain_interval(setup: ScriptSetup) -> str:
    interval = setup.loop.interruptions.interval
    least = 2 * (STEPS_BEFORE_BLOCK + _least_steps(setup))
    if not interval or interval > least:
        return ""
    return f", every {interval} steps; a round takes {least} or more"


def run_loop(setup: ScriptSetup, arm: str, known: LoopFacts = NOTHING) -> Steps[None]:
    """Time the loop as the script runs it, with one arm throughout. What is set here counts from
    its first batch on.
    """
    setup.loop.loader.keep_none()
    if arm == "compiled":
        # Each known module is compiled at its first call, as `model.compile()` before the loop
        # does: eager steps before that may change how long later ones take, by what they leave
        # behind in the process.
        setup.loop.modules.stop()  # its hooks would break graphs
        setup.arms.switch("compiled")
        if not known.compiles_itself:
            tell = partial(setup.notes.announce, "compiling")
            setup.arms.compile_at_first_calls(known.modules, tell)
    return _run_loop(setup, arm, known)


def _run_loop(setup: ScriptSetup, arm: str, known: LoopFacts) -> Steps[None]:
    notes, arms, loop = setup.notes, setup.arms, setup.loop
    modules = setup.begin()
    if arm == "compiled":
        with notes.enter("compiling"):
            arms.prepare(modules)
            arms.switch(arm)
            yield from _settle(setup)
            arms.require_compiled()
    else:
        with notes.enter("eager"):
            yield from run_steps(EAGER_STEPS)
    with notes.enter("warming"):
        # what workers fetched ahead while nothing was asked for
        yield from run_steps(loop.loader.queued)
    with notes.enter("measuring"):
        host = host_monitor.HostMonitor()
        yield from time_loop(setup, arm, known)
        notes.add(host=HostState(busy_while_measuring=host.share_busy_by_others()))
        if arm == "compiled":
            arms.require_compiled()


def _settle(setup: ScriptSetup) -> Steps[None]:
    """Run until nothing has been compiled for some steps."""
    quiet, steps = 0, 0
    while quiet < SETTLED_STEPS and steps < FIRST_STEPS[1]:
        programs = setup.arms.counters.programs
        yield
        steps += 1
        quiet = quiet + 1 if setup.arms.counters.programs == programs else 0
