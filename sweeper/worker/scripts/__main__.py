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
from typing import NoReturn

from sweeper.core.protocol import Job, Message
from sweeper.core.record import EAGER_PHASES, Process, RankRun
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
from .phases import compare_steps, prepare_loop, run_loop
from .ranks import ALONE, LaunchedRanks, Ranks
from .runs import LOOPS, STEPS, TRAJECTORY, LoopFacts, make_parser
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
    known = from_json(LoopFacts, json.loads(arguments.known))
    with Patches() as patches:
        script = WatchedScript(job, log, patches, ranks)
        script.run(arguments.which, known)
    flush_output()
    if script.failed and ranks.size > 1:
        sys.exit(1)  # the launcher ends the other ranks, which may wait for this one


class WatchedScript:
    """The script of a job in this process, and all that watches it."""

    def __init__(self, job: Job, log: ProcessLog, patches: Patches, ranks: Ranks = ALONE) -> None:
        self._job, self._log, self._patches = job, log, patches
        self._loop, self._switch = Loop(patches, ranks), ArmSwitch(job.trial, patches)
        self._loop.count_calls = self._switch.count_calls
        self.failed = False

    def run(self, which: str, known: LoopFacts) -> None:
        """Run the script until what the run `which` measures is there, and say how it went."""
        log, loop, patches = self._log, self._loop, self._patches
        log.environment |= environment.describe()
        program = Program.of(self._job.trial.model)
        sha256 = None
        if program.file is not None:  # before it runs
            sha256 = hashlib.sha256(program.file.read_bytes()).hexdigest()
        log.add_to_script(sha256=sha256)
        self._switch.begin()
        loop.begin(self._run_phases(which, known), self._end)
        os.register_at_fork(after_in_child=loop.stop)  # a child's steps are not the script's
        refuse_several(patches, self._refuse, is_launched=loop.ranks is not ALONE)
        if arm := LOOPS.get(which):
            prepare_loop(loop, self._switch, log, arm, known)
        before = measure_log()
        try:
            limit_s = min(MAX_SILENCE_S, self._job.measure.timeout_s / 8)
            with watch_silence(loop, log.note, limit_s):
                program.run(patches)
        except EndOfScript:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                status = "eager_error" if log.phase in EAGER_PHASES else "runtime_error"
                loop.finish(failures.Failure(explain_exit(error, before), status))
        except BaseException as error:  # noqa: BLE001  # whatever a script raises is the result
            loop.finish(error)
        loop.finish()

    def _run_phases(self, which: str, known: LoopFacts) -> Steps[None]:
        """Go through the phases of a run, from the first step on of which the loop knows the end,
        and keep what was seen of the script.
        """
        log = self._log
        subject = ScriptSubject(self._job, self._loop, self._switch)
        try:
            if which == STEPS:
                yield from compare_steps(subject, log)
            elif which == TRAJECTORY:
                yield from compare_trajectory(subject, log)
            else:
                yield from run_loop(subject, log, which, known)
        finally:
            note_seen(subject, log)
            log.environment["device"] = environment.describe_device(subject.device)
            log.settings |= torch_flags.read()

    def _end(self, error: BaseException | None) -> None:
        """Say how the run went; `error` is what went wrong in it."""
        self._switch.stop()
        if error is None:
            try:
                self._share_counts()
            except failures.Failure as failure:
                error = failure
        self._log.say(self._log.outcome(error))
        if error is None:
            return
        self.failed = True
        if self._loop.ranks.size > 1:
            time.sleep(OTHERS_S)
        log_error(error)

    def _share_counts(self) -> None:
        """Keep what each rank has compiled, when all have come to the end."""
        ranks = self._loop.ranks
        if ranks.size == 1:
            return
        found = self._switch.counters.report({})
        own = RankRun(found.graphs or 0, found.recompiles or 0)
        self._log.add_to_script(ranks=tuple(ranks.share("end", own)))

    def _refuse(self, reason: str) -> NoReturn:
        self._loop.finish(
            failures.UnavailableError(
                f"{reason}; give what starts them: model.launch='torchrun --nproc-per-node N'"
            )
        )
        raise EndOfScript


if __name__ == "__main__":
    main()
