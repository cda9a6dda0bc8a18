"""A script as a subject of measurement: its own loop runs the steps, and both arms are its modules,
called as they are and compiled.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from statistics import median_low

import torch
from torch.nn.parallel import DistributedDataParallel

from sweeper.core.protocol import Job
from sweeper.core.record import (
    ARMS,
    EVALUATED,
    MAX_CALLS_DIFFERENCE,
    READ_LOADER,
    SAVED_FILE,
    Accuracy,
)
from sweeper.worker.failures import EagerError, MismatchError, UnsteadyError
from sweeper.worker.measurement import memory
from sweeper.worker.measurement.bench import (
    STEPS_BEFORE_BLOCK,
    Arm,
    Bench,
    Steps,
    spread,
)
from sweeper.worker.measurement.readings import measure_device_time, note_memory
from sweeper.worker.models.batches import Batch
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.source_lines import name_class
from sweeper.worker.subject import Subject

from .arms import ArmSwitch
from .check import check_modules
from .watch.loop import Loop, ScriptOverError, run_steps
from .watch.modules import find_kind

EAGER_STEPS = 4  # of runs that begin in eager
TO_NEXT_EPOCH = 8  # steps in which a library begins another epoch that has taken batches ahead
SEVERAL = "several processes train"
MAX_MORE_ROUNDS = 8  # times as many, where blocks have to be shorter


class LoopBench(Bench):
    """Has the script's loop run the steps.

    What compiles again, `LoopMonitor` sees: libraries may compile code of their own.
    """

    def __init__(self, device: torch.device, switch: ArmSwitch, loop: Loop) -> None:
        super().__init__(device)
        self._switch, self._loop, self._ranks = switch, loop, loop.ranks
        # of each block of a round, how much longer it took in the slowest rank than in the fastest
        self.spreads: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self._before = loop.count()  # before the steps that run
        # of modules, in all blocks without evaluations, which may call them with gradients too
        self._num_calls = self._num_steps = 0
        self._differences: deque[float] = deque(maxlen=9)  # of blocks from the mean in their calls
        self.is_per_call = False  # whether most blocks differ in them

    def block_s(self, arm: Arm, steps: int) -> Steps[float]:
        """Wall seconds of `steps` steps in the slowest rank."""
        own_s = yield from super().block_s(arm, steps)
        times = self._ranks.share("block", self._scale(own_s, steps))
        if self.keeps_result and len(times) > 1:  # in a round
            self.spreads[arm.name].append(spread(times))
        return max(times)

    def _scale(self, seconds: float, steps: int) -> float:
        """The seconds of a block; where steps differ in their calls of modules, of as many calls as
        such steps have on average.
        """
        seen = self._loop.count().since(self._before)
        if seen.evaluations or not seen.calls:
            return seconds
        self._num_calls += seen.calls
        self._num_steps += steps
        factor = self._num_calls / self._num_steps * steps / seen.calls
        self._differences.append(abs(factor - 1))
        self.is_per_call = median_low(self._differences) > MAX_CALLS_DIFFERENCE
        return seconds * factor if self.is_per_call else seconds

    def synchronize(self) -> None:
        if self.device.index:  # a rank's may not be torch's current one
            torch.cuda.synchronize(self.device)
        else:
            super().synchronize()

    def now(self) -> float:
        return self._ranks.share("time", self.clock())[0]

    def run(self, arm: Arm, steps: int) -> Iterable[None]:
        """Run an arm from now on; the loop has to run its steps."""
        self._switch.choose(arm.name)
        self._before = self._loop.count()
        return run_steps(steps)

    def before_block(self, steps: int) -> Iterable[None]:
        """Read the batches of so many steps. Where an evaluation, a saved file or the end of an
        epoch comes before their end in any rank, have the script run until it is over.
        """
        intervals = sum(one.interval for one in self._loop.disturbances)
        for _ in range(steps + max(self._ranks.share("wait", intervals)) + TO_NEXT_EPOCH):
            is_ready = self._is_ready(steps)
            if self._ranks.size > 1:
                self.synchronize()  # the ranks begin together
            if all(self._ranks.share("begin", is_ready)):
                return
            yield

    def _is_ready(self, steps: int) -> bool:
        loop = self._loop
        has_room = all(one.leave_room(steps) for one in loop.disturbances)
        has_batches = loop.loader.read_ahead(steps) >= steps
        return (has_batches and has_room) or steps > self.fit_block()

    def fit_block(self) -> float:
        """The most steps in a row that are known to be possible in this rank."""
        rooms = [one.interval - 1 for one in self._loop.disturbances if one.interval]
        return min([self._loop.loader.max_steps, *rooms])

    def steps_s(self, arm: Arm, steps: int, until_idle: bool = True) -> Steps[list[float]]:
        self._switch.choose(arm.name)
        yield from self.before_block(steps)
        times = []
        for _ in range(steps):
            self.synchronize()
            start = self.clock()
            yield
            if until_idle:
                self.synchronize()
            times.append(self.clock() - start)
        return [max(one) for one in zip(*self._ranks.share("steps", times), strict=True)]


class LoopMonitor(RoundMonitor):
    """Also voids a round in which the script did more than train, or compiled; and reads torch's
    allocator.
    """

    def __init__(self, device: torch.device, loop: Loop) -> None:
        super().__init__(device)
        self._device, self._loop, self._block = device, loop, loop.count()
        self._reason: str | None = None
        self._memory: dict[str, memory.Reading] = {}
        self.memory: dict[str, memory.Reading] = {}  # by arm, in the last round that counts

    def start_round(self) -> None:
        self._reason = None
        super().start_round()

    def start_block(self) -> None:
        self._block = self._loop.count()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def read_after_block(self, arm: str) -> None:
        if self._device.type == "cuda":
            self._memory[arm] = memory.Reading(*memory.read_allocator(graphs=arm == "compiled"))
        seen = self._loop.count().since(self._block)
        happened = {
            READ_LOADER: seen.others,
            EVALUATED: seen.evaluations,
            SAVED_FILE: seen.saved,
            "the gradient scaler skipped a step": seen.skipped,
            "recompiled": seen.programs,
        }
        self._reason = next((name for name, amount in happened.items() if amount), self._reason)
        super().read_after_block(arm)

    def explain_void(self) -> str | None:
        reasons = self._loop.ranks.share("void", self._reason or super().explain_void())
        reason = next(filter(None, reasons), None)
        if reason is None:
            self.memory = dict(self._memory)
        return reason


class ScriptSubject(Subject):
    """The loop of a script, made when it is known where its steps end."""

    is_whole_process = False
    bench: LoopBench
    monitor: LoopMonitor

    def __init__(self, job: Job, loop: Loop, switch: ArmSwitch) -> None:
        self.trial, self.measure, self.job, self.ranks = job.trial, job.measure, job, loop.ranks
        self.loop, self.switch = loop, switch
        self.eager, self.compiled = (
            Arm(name, _run_no_step, eager=name == "eager") for name in ARMS
        )
        self.device = loop.find_device()
        self.bench = LoopBench(self.device, switch, loop)
        self.monitor = LoopMonitor(self.device, loop)
        self.apart: str | None = None  # a parameter in which ranks differ after eager steps

    def run_eager(self, _log: ProcessLog) -> Steps[None]:
        yield from run_steps(EAGER_STEPS)
        self.apart = self._find_apart()

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
            for arm, reading in self.monitor.memory.items():
                note_memory(log, arm, reading, is_shared=False)

    def finish_rounds(self, log: ProcessLog) -> None:
        """Note which compiled forms no step has called, before the check calls them."""
        uncalled = [
            form.module for form in self.switch.forms if not (form.shapes or form.num_untrained)
        ]
        gone_round = filter(self.loop.modules.has_seen, uncalled)
        log.add_to_script(gone_round=tuple(map(name_class, gone_round)))

    def check_at_end(self, log: ProcessLog) -> Iterable[None]:
        """Judge each compiled module, when the script is needed no more.

        Raises MismatchError where steps of both arms have given ranks other parameters, and eager
        ones had not.
        """
        if self.apart is None and (apart := self._find_apart()):
            raise MismatchError(
                f"{apart} has other values than in rank 0 after compiled steps, and had the same "
                "after eager ones"
            )
        self.switch.choose("eager")
        forms, patches = self.switch.compiled_forms(), self.switch.patches
        wrappers = {}
        if self.ranks.size > 1:
            for module in self.loop.modules.modules:
                inner = getattr(module, "_orig_mod", module)
                if isinstance(inner, DistributedDataParallel):
                    wrappers[inner] = partial(self.switch.call_compiled, module)
        return check_modules(self.job, self.device, forms, wrappers, patches, log, self.ranks)

    def _find_apart(self) -> str | None:
        """Name a rank in which sums over a parameter are not those of rank 0, and the first such
        parameter; those of which each rank has a part are left out.
        """
        if self.ranks.size == 1:
            return None
        names, sums = [], []
        for module in self.loop.modules.modules:
            if find_kind(module, ["FullyShardedDataParallel"]):
                continue
            for name, parameter in module.named_parameters():
                if type(parameter) is torch.nn.Parameter:
                    values = parameter.detach().double()
                    names.append(name)
                    # as texts, since no number equals NaN
                    sums.append(repr((float(values.sum()), float(values.square().sum()))))
        shared = self.ranks.share("parameters", sums)
        for name, *found in zip(names, *shared, strict=False):
            for number, one in enumerate(found):
                if one != found[0]:
                    return f"rank {number}: {name}"
        return None

    def end_early(self, over: ScriptOverError, log: ProcessLog) -> None:
        """Keep what was measured before the script ended by itself, and say of each reading that it
        left no steps for why it is missing. Raises EagerError where that is no round.
        """
        steps, needed = log.process.steps_per_block, ""
        if steps is None:
            step_s = log.process.phases_s["eager"] / EAGER_STEPS
            least = self.loop.watched + EAGER_STEPS + self.bench.count_least(step_s, self.measure)
            # the estimate is too small where the first steps were slow, or the warm-up was long
            is_too_small = least <= self.loop.num_seen
            needed = " before the first round" if is_too_small else f": about {least:,}"
        elif not log.process.blocks_s("eager"):
            needed = f" to end the first round, which has {2 * steps:,}"
        if needed:
            advice = "give it more epochs or steps by its arguments"
            if self.ranks.size > 1:
                advice = f"see that no rank ends before the others, or {advice}"
            raise EagerError(f"{over}{needed}; {advice}") from over
        self.require_compiled()
        why = "the script ended before"
        log.add(accuracy=Accuracy(None, None, f"{why} its modules could be judged"))
        self._note_missing(why, log)

    def take_readings(self, log: ProcessLog) -> Steps[None]:
        """Take the device's time alone in several ranks, which takes equally many steps in each:
        for other readings each would decide for itself how many it needs.
        """
        if self.ranks.size == 1:
            yield from super().take_readings(log)
            return
        if self.device.type == "cuda":
            with log.enter("profiling"):
                yield from measure_device_time(self.bench, self.arms, log)
        self._note_missing(SEVERAL, log)

    def _note_missing(self, why: str, log: ProcessLog) -> None:
        """Say of each reading that is not there why."""
        process = log.process
        figures = {"energy_missing": process.energy_j} if self.measure.energy else {}
        if self.device.type == "cuda":
            figures["device_time_missing"] = process.device_time_s
            figures["host_time_missing"] = process.host_step_s
        for reason, figure in figures.items():
            if figure is None and getattr(process, reason) is None:
                log.add(**{reason: why})

    def _shorten_blocks(self, log: ProcessLog) -> bool:
        """Shorten blocks until one fits into an epoch, and between two evaluations or saved files
        of the script; whether they are now.
        """
        steps = log.process.steps_per_block
        most = min(self.ranks.share("fit", self.bench.fit_block())) - STEPS_BEFORE_BLOCK
        if steps is None or not 1 <= most < steps:
            return False
        more = min(math.ceil(steps / most), MAX_MORE_ROUNDS)
        self.measure = replace(self.measure, rounds=more * self.measure.rounds)
        log.add(steps_per_block=int(most))
        return True

    def _explain_interval(self) -> str:
        interval = self.loop.interruptions.interval
        least = STEPS_BEFORE_BLOCK + 1
        if not interval or interval > least:
            return ""
        return f", every {interval} steps; a block takes {least} or more"


def _run_no_step(_batch: Batch) -> object:
    raise AssertionError("the script's loop runs the steps of its arms")
