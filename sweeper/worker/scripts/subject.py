"""A script as a subject of measurement: its own loop runs the steps, and both arms are its modules,
called as they are and compiled.
"""

from collections.abc import Iterable, Mapping

import torch

from sweeper.core.protocol import Job
from sweeper.core.record import (
    ARMS,
    READ_LOADER,
    SAVED_FILE,
    Accuracy,
    LoopRun,
    PerArm,
    Trajectory,
)
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import EagerError, UnsteadyError
from sweeper.worker.measurement import memory
from sweeper.worker.measurement.bench import (
    MIN_BLOCK_STEPS,
    STEPS_BEFORE_BLOCK,
    Arm,
    Bench,
    Steps,
)
from sweeper.worker.models.batches import Batch
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.subject import Subject

from .arms import ArmSwitch
from .check import check_modules
from .watch.compile_calls import CompileCalls
from .watch.interruptions import Interruptions
from .watch.loop import Loop, ScriptOverError, run_steps
from .watch.patches import Patches

EAGER_STEPS = 4  # of runs that begin in eager; they show how many batches a step takes
# recorded batches that blocks go through; each new shape may have to be compiled
MAX_CYCLE_BATCHES = 8


class LoopBench(Bench):
    """Has the script's loop run the steps; its sizes are the recorded batches that its loader gives
    in turn.

    What compiles again, `LoopMonitor` sees: libraries may compile code of their own.
    """

    def __init__(
        self, device: torch.device, switch: ArmSwitch, interruptions: Interruptions
    ) -> None:
        super().__init__(device)
        self._switch, self._interruptions = switch, interruptions

    def run(self, arm: Arm, steps: int) -> Iterable[None]:
        """Run an arm from now on; the loop has to run its steps."""
        self._switch.choose(arm.name)
        return run_steps(steps)

    def before_round(self, steps: int) -> Iterable[None]:
        """Let the script's next evaluation or saved file be over, where a round would not end
        before it.
        """
        for _ in range(self._interruptions.interval or 0):
            if self._interruptions.leave_room(steps):
                return
            yield

    def steps_s(self, arm: Arm, steps: int, until_idle: bool = True) -> Steps[list[float]]:
        self._switch.choose(arm.name)
        times = []
        for _ in range(steps):
            self.synchronize()
            start = self.clock()
            yield
            if until_idle:
                self.synchronize()
            times.append(self.clock() - start)
        return times


class LoopMonitor(RoundMonitor):
    """Also voids a round in which the script did more than train, or compiled; and reads torch's
    allocator.
    """

    def __init__(self, device: torch.device, loop: Loop, counters: CompileCounters) -> None:
        super().__init__(device)
        self._device, self._loop, self._counters = device, loop, counters
        self._reason: str | None = None
        self._block = loop.count(), counters.programs
        self._memory: dict[str, memory.Reading] = {}
        self.memory: dict[str, memory.Reading] = {}  # by arm, in the last round that counts

    def start_round(self) -> None:
        self._reason = None
        super().start_round()

    def start_block(self) -> None:
        self._block = self._loop.count(), self._counters.programs
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def read_after_block(self, arm: str) -> None:
        if self._device.type == "cuda":
            self._memory[arm] = memory.Reading(*memory.read_allocator(graphs=arm == "compiled"))
        before, programs = self._block
        seen = self._loop.count().since(before)
        happened: Mapping[str, object] = {
            READ_LOADER: seen.others,
            SAVED_FILE: seen.saved,
            "the gradient scaler skipped a step": seen.skipped,
            "recompiled": self._counters.programs != programs,
        }
        self._reason = next((name for name, amount in happened.items() if amount), self._reason)
        super().read_after_block(arm)

    def explain_void(self) -> str | None:
        reason = self._reason or super().explain_void()
        if reason is None:
            self.memory = dict(self._memory)
        return reason


class ScriptSubject(Subject):
    """The loop of a script, made when it is known where its steps end."""

    is_whole_process = False
    monitor: LoopMonitor

    def __init__(
        self, job: Job, loop: Loop, calls: CompileCalls, switch: ArmSwitch, patches: Patches
    ) -> None:
        self.trial, self.measure, self.job = job.trial, job.measure, job
        self.loop, self.calls, self.switch, self.patches = loop, calls, switch, patches
        self.eager, self.compiled = (
            Arm(name, _run_no_step, eager=name == "eager") for name in ARMS
        )
        self.device = loop.find_device()
        self.bench = LoopBench(self.device, switch, loop.interruptions)
        self.monitor = LoopMonitor(self.device, loop, switch.counters)
        self.monitor.set_baseline()
        self.loops: dict[str, LoopRun] = {}  # by arm
        self.trajectory: Trajectory | None = None

    def run_eager(self, _log: ProcessLog) -> Steps[None]:
        """Run steps, after which recorded batches are given again: blocks go through few shapes."""
        loader = self.loop.loader
        before = loader.num_batches
        yield from run_steps(EAGER_STEPS)
        per_step = (loader.num_batches - before) / EAGER_STEPS
        if loader.num_recorded and per_step > 0:
            size = max(round(per_step), 1)
            cycle = max(min(MAX_CYCLE_BATCHES, loader.num_recorded) // size, 1)
            loader.replay(cycle * size)
            self.bench.num_sizes = cycle

    def compile(self, log: ProcessLog) -> None:
        log.counters = self.switch.counters
        self.switch.prepare(self.loop.modules.modules)

    def require_compiled(self) -> None:
        self.switch.require_compiled()

    def time_rounds(self, log: ProcessLog) -> Steps[None]:
        """Time rounds, of shorter blocks where the script's evaluations or saved files leave no
        room for them.
        """
        self._shorten_blocks(log)
        try:
            try:
                yield from super().time_rounds(log)
            except UnsteadyError as error:
                if not self._shorten_blocks(log):
                    raise UnsteadyError(f"{error}{self._explain_interval()}") from error
                log.add(rounds=tuple(item for item in log.process.rounds if item.void))
                yield from super().time_rounds(log)
        finally:
            if found := self.monitor.memory:
                peaks = {arm: item.allocator_peak_bytes for arm, item in found.items()}
                in_use = {arm: item.in_use_bytes for arm, item in found.items()}
                log.add(allocator_peak_bytes=PerArm(**peaks), memory_bytes=PerArm(**in_use))

    def check_at_end(self, log: ProcessLog) -> Iterable[None]:
        """Judge each compiled module, when the script is needed no more."""
        self.switch.choose("eager")
        pairs = self.switch.compiled_forms()
        return check_modules(self.job, self.device, pairs, self.patches, log)

    def end_early(self, over: ScriptOverError, log: ProcessLog) -> None:
        """Keep what was measured before the script ended by itself, and say of each reading that it
        left no steps for why it is missing. Raises EagerError where that is no round.
        """
        if log.process.steps_per_block is None:
            raise over
        if not log.process.blocks_s("eager"):
            steps = 2 * log.process.steps_per_block
            message = f"{over}; it ended before its first round of {steps} steps was complete"
            raise EagerError(message) from over
        self.require_compiled()
        process, why = log.process, "the script ended before"
        log.add(accuracy=Accuracy(None, None, f"{why} its modules could be judged"))
        if self.measure.energy and process.energy_j is None and process.energy_missing is None:
            log.add(energy_missing=why)
        if self.device.type != "cuda":
            return
        if process.device_time_s is None and process.device_time_missing is None:
            log.add(device_time_missing=why)
        if process.host_step_s is None and process.host_time_missing is None:
            log.add(host_time_missing=why)

    def _shorten_blocks(self, log: ProcessLog) -> bool:
        """Shorten blocks until a round fits between two evaluations or saved files of the script;
        whether they are now.
        """
        steps = log.process.steps_per_block
        most = self.loop.interruptions.fit_block(STEPS_BEFORE_BLOCK)
        if steps is None or most is None:
            return False
        most -= most % self.bench.num_sizes
        if not self._least_steps() <= most < steps:
            return False
        log.add(steps_per_block=most)
        return True

    def _least_steps(self) -> int:
        return self.bench.round_up(self.measure.block_steps or MIN_BLOCK_STEPS[self.device.type])

    def _explain_interval(self) -> str:
        interval = self.loop.interruptions.interval
        least = 2 * (STEPS_BEFORE_BLOCK + self._least_steps())
        if not interval or interval > least:
            return ""
        return f", every {interval} steps; a round takes {least} or more"


def _run_no_step(_batch: Batch) -> object:
    raise AssertionError("the script's loop runs the steps of its arms")
