"""Entry point of the process in which a script runs: `python -m sweeper.worker.scripts trial.json
RUN --answer-fd N`, or with `--ranks` one of the processes in which it trains.

It answers with phases and one outcome, as a worker does, and ends the script. Whatever the script
does to its process (signals, descriptors, folders, exit) stays in here.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial

from sweeper.core.libraries import SCRIPT
from sweeper.core.protocol import Job, Message
from sweeper.core.record import EAGER_PHASES, Process, RankRun, ScriptRun
from sweeper.core.serialization import from_json
from sweeper.core.system.pipes import flush_output, log_error
from sweeper.worker import failures
from sweeper.worker.children import open_answer
from sweeper.worker.lease import Lease
from sweeper.worker.measurement.bench import Steps
from sweeper.worker.monitoring import environment, host_monitor, torch_flags
from sweeper.worker.parent_death import die_with_parent
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.source_lines import find_own_line

from .arms import ArmSwitch
from .description import note_seen
from .model_training import train
from .phases import compare_steps, prepare_loop, run_loop
from .ranks import ALONE, LaunchedRanks, Ranks
from .runs import LOOPS, STEPS, TRAJECTORY, make_parser
from .subject import ScriptSubject
from .trajectory.phases import compare_trajectory
from .watch.last_line import describe_last_line, measure_log
from .watch.loop import Loop
from .watch.patches import Patches
from .watch.script_runner import EndOfScript, Program
from .watch.several_processes import refuse_several
from .watch.silence import MAX_SILENCE_S, watch_silence

# after a rank has failed, before it writes more: others may fail alike, and the last line of one
# that has died is read
OTHERS_S = 0.5


def explain_exit(error: SystemExit, begin: int) -> str:
    """Say that the script has ended itself, with a message or an exit code other than 0; `begin`:
    bytes of the log before it ran.
    """
    text = f"the script ended with the message: {error.code}"
    if isinstance(error.code, int):
        flush_output()
        text = f"the script ended with exit code {error.code}{describe_last_line(begin)}"
    return ": ".join(filter(None, (find_own_line(error), text)))


def main() -> None:
    parser = make_parser("sweeper.worker.scripts")
    parser.add_argument("--ranks", help="the address at which a launcher hears its ranks")
    arguments = parser.parse_args()
    die_with_parent()
    ranks: Ranks = ALONE
    if arguments.ranks:
        ranks = launched = LaunchedRanks(arguments.ranks)
        host_monitor.own_sessions |= {*launched.sessions}
        say: Callable[[Message], None] = launched.say
    else:
        say = open_answer(arguments.answer_fd)
    job = Job.loads(arguments.trial.read_text())
    log = ProcessLog(say, Process(0, 0, cold=False), Lease())
    known = from_json(ScriptRun, json.loads(arguments.known))
    with Patches() as patches:
        is_right = run_script(job, arguments.which, known, log, patches, ranks)
    flush_output()
    if not is_right and ranks.size > 1:
        sys.exit(1)  # the launcher ends the other ranks, which may wait for this one


def run_script(
    job: Job, which: str, known: ScriptRun, log: ProcessLog, patches: Patches, ranks: Ranks = ALONE
) -> bool:
    """Run the script of a job in this process until what the run `which` measures is there, and say
    how it went; whether nothing went wrong.
    """
    loop, switch = Loop(patches, ranks), ArmSwitch(job.trial, patches)
    loop.count_calls = switch.count_calls
    is_right = True

    def end(error: BaseException | None) -> None:
        nonlocal is_right
        switch.stop()
        log.say(log.outcome(error))
        if error is None:
            return
        is_right = False
        if ranks.size > 1:
            time.sleep(OTHERS_S)
        log_error(error)

    log.environment |= environment.describe()
    run, sha256 = partial(train, job, log, ranks), None
    if job.trial.workload == SCRIPT:
        program = Program.of(job.trial.model)
        run = partial(program.run, patches)
        if program.file is not None:  # before it runs
            sha256 = hashlib.sha256(program.file.read_bytes()).hexdigest()
    log.add_to_script(sha256=sha256)
    switch.begin()
    loop.begin(_run_phases(job, which, known, loop, switch, log), end)
    os.register_at_fork(after_in_child=loop.stop)  # a child's steps are not the script's
    refuse_several(patches, loop.finish, is_launched=ranks is not ALONE)
    if arm := LOOPS.get(which):
        prepare_loop(loop, switch, log, arm, known)
    before = measure_log()
    try:
        limit_s = min(MAX_SILENCE_S, job.measure.timeout_s / 8)
        with watch_silence(loop, log.note, limit_s):
            run()
    except EndOfScript:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            status = "eager_error" if log.phase in EAGER_PHASES else "runtime_error"
            loop.finish(failures.Failure(explain_exit(error, before), status))
    except BaseException as error:  # noqa: BLE001  # whatever a script raises is the result
        loop.finish(error)
    loop.finish()
    return is_right


def _run_phases(
    job: Job, which: str, known: ScriptRun, loop: Loop, switch: ArmSwitch, log: ProcessLog
) -> Steps[None]:
    """Go through the phases of a run, from the first step on of which the loop knows the end,
    and keep what was seen of the script, and what each rank has compiled.
    """
    subject = ScriptSubject(job, loop, switch)
    try:
        if which == STEPS:
            yield from compare_steps(subject, log)
        elif which == TRAJECTORY:
            yield from compare_trajectory(subject, log)
        else:
            yield from run_loop(subject, log, which, known)
        if loop.ranks.size > 1:
            found = switch.counters.report()
            peaks = log.process.allocator_peak_bytes
            own = RankRun(found.graphs or 0, found.recompiles or 0, peaks)
            log.add_to_script(ranks=tuple(loop.ranks.share("end", own)))
    finally:
        note_seen(subject, log)
        log.environment["device"] = environment.describe_device(subject.device)
        log.settings |= torch_flags.read()


if __name__ == "__main__":
    main()
