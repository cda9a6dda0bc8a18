"""What the leads of a script share: what each run needs, and the bench on which its loop runs the steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from sweeper.core.protocol import Job
from sweeper.core.record import LoopRun, Trajectory
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.measurement import memory
from sweeper.worker.measurement.bench import Arm, Bench, Steps
from sweeper.worker.models.batches import Batch
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.scripts.arms import Arms
from sweeper.worker.scripts.compile_calls import CompileCalls
from sweeper.worker.scripts.loop import Loop
from sweeper.worker.session import Notes


class LoopBench(Bench):
    """Has the script's loop run the steps; its sizes are the recorded batches that its loader gives in turn.

    No stance makes what compiles again fail, since libraries may compile code of their own: `LoopMonitor` sees it.
    """

    def __init__(self, device: torch.device, arms: Arms) -> None:
        super().__init__(device)
        self._arms = arms

    def run(self, arm: Arm, steps: int, _stance: str = "default") -> Iterable[None]:
        """Run an arm from now on; the loop has to run its steps."""
        self._arms.switch(arm.name)
        return itertools.repeat(None, steps)

    def steps_s(self, arm: Arm, steps: int, _stance: str = "default", until_idle: bool = True) -> Steps[list[float]]:
        self._arms.switch(arm.name)
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
    """Also voids a round in which the script did more than train, or compiled; and reads torch's allocator."""

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
        happened = {
            "the script read another loader": seen.others,
            "the script saved a file": seen.saved,
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


class ScriptSetup:
    """What the leads share. `sha256` is of the script's file, before it ran."""

    # Once the loop is known: the device of the parameters that the optimizers train, and what runs and watches steps.
    device: torch.device
    bench: LoopBench
    monitor: LoopMonitor

    def __init__(self, job: Job, notes: Notes, loop: Loop, calls: CompileCalls, arms: Arms, sha256: str | None) -> None:
        self.trial, self.measure, self.job = job.trial, job.measure, job
        self.notes, self.loop, self.calls, self.arms, self.sha256 = notes, loop, calls, arms, sha256
        self.eager, self.compiled = (Arm(name, _run_no_step, eager=name == "eager") for name in ("eager", "compiled"))
        self.loops: dict[str, LoopRun] = {}  # by arm
        self.trajectory: Trajectory | None = None
        self.has_begun = False

    def begin(self) -> list[torch.nn.Module]:
        """The modules to compile, of which the device is read."""
        parameters = (
            item for group in next(iter(self.loop.optimizers.values())).param_groups for item in group["params"]
        )
        self.device = next(parameters).device
        self.bench = LoopBench(self.device, self.arms)
        self.monitor = LoopMonitor(self.device, self.loop, self.arms.counters)
        self.monitor.set_baseline()
        self.has_begun = True
        return list(self.loop.modules.modules)

    def name_module(self, module: torch.nn.Module) -> str:
        """Name a module by its class, and the line of the script that calls it."""
        line = self.loop.modules.modules.get(module)
        return f"{type(module).__name__} ({line})" if line else type(module).__name__


def _run_no_step(_batch: Batch) -> object:
    raise AssertionError("the script's loop runs the steps of its arms")
