"""What is measured while a script runs: generators that the loop resumes at the end of each of its
steps.

`compare_steps` compares both arms in one process: blocks of K steps take turns, whose batches are
read before, so the times leave out loading. `run_loop` runs one arm throughout, loader and all, as
the script does by itself: batches that were fetched ahead in one arm's time must not be used up in
the other's.
"""

from sweeper.core.record import HostState, ScriptRun
from sweeper.worker.measurement.bench import FIRST_STEPS, Steps
from sweeper.worker.monitoring.host_monitor import HostMonitor
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.session import measure
from sweeper.worker.source_lines import name_call

from .arms import ArmSwitch
from .loop_time import time_loop
from .runs import LOOPS
from .subject import EAGER_STEPS, ScriptSubject
from .watch.loop import Loop, ScriptOverError, run_steps

PHASES = {"eager": "eager", "compiled": "compiling"}  # of the first steps of an arm
SETTLED_STEPS = 3  # in a row without a compilation, before a compiled loop is timed


def compare_steps(subject: ScriptSubject, log: ProcessLog) -> Steps[None]:
    """Compare the steps of both arms; the script ends when the generator does."""
    try:
        yield from measure(subject, log)
    except ScriptOverError as over:
        subject.end_early(over, log)


def prepare_loop(
    loop: Loop, switch: ArmSwitch, log: ProcessLog, arm: str, known: ScriptRun
) -> None:
    """Set what counts from the first batch of a loop on; `known` is what earlier runs have seen.

    Each known module is compiled at its first call, as `model.compile()` before the loop does:
    eager steps before that may change how long later ones take, by what they leave behind in the
    process.
    """
    loop.loader.keep_none()
    loop.watched = known.watched
    loop.modules.stop()  # its hooks would break graphs
    switch.choose(arm)
    if not any(call.is_arm for call in known.compile_calls):  # else these are the compiled arm
        names = list(map(name_call, known.modules, known.called_at))
        switch.put_in_at_first_calls(names, arm, lambda: log.announce(PHASES[arm]))


def run_loop(subject: ScriptSubject, log: ProcessLog, which: str, known: ScriptRun) -> Steps[None]:
    """Time the loop as the script runs it, with one arm throughout."""
    switch, loop, arm = subject.switch, subject.loop, LOOPS[which]
    with log.enter(PHASES[arm]):
        subject.compile(log)  # of modules that `prepare_loop` named, none is left
        switch.choose(arm)
        if arm == "compiled":
            yield from _settle(subject)
            switch.require_compiled()
        else:
            yield from run_steps(EAGER_STEPS)
    with log.enter("warming"):
        # what workers fetched ahead while nothing was asked for
        yield from run_steps(max(subject.ranks.share("queued", loop.loader.queued)))
    with log.enter("measuring"):
        host = HostMonitor()
        run = yield from time_loop(subject, known)
        log.add_to_script(**{which: run})
        log.add(host=HostState(busy_while_measuring=host.share_busy_by_others()))
        if arm == "compiled":
            switch.require_compiled()


def _settle(subject: ScriptSubject) -> Steps[None]:
    """Run until nothing has been compiled for some steps, in any rank."""
    switch = subject.switch
    quiet = 0
    for _ in range(FIRST_STEPS[1]):
        programs = switch.count_calls().programs
        yield
        is_quiet = switch.count_calls().programs == programs
        quiet = quiet + 1 if all(subject.ranks.share("settle", is_quiet)) else 0
        if quiet == SETTLED_STEPS:
            return
