"""What the phases of a script share."""

import torch

from sweeper.core.protocol import Job
from sweeper.core.record import ARMS, LoopRun, Trajectory
from sweeper.worker.measurement.bench import Arm
from sweeper.worker.models.batches import Batch
from sweeper.worker.session import ProcessLog

from .arms import Arms
from .compile_calls import CompileCalls
from .loop import Loop
from .loop_bench import LoopBench, LoopMonitor


class ScriptSetup:
    """What the phases share. `sha256` is of the script's file, before it ran."""

    # Once the loop is known: the device of the parameters that the optimizers train, and what runs
    # and watches steps.
    device: torch.device
    bench: LoopBench
    monitor: LoopMonitor

    def __init__(
        self,
        job: Job,
        notes: ProcessLog,
        loop: Loop,
        calls: CompileCalls,
        arms: Arms,
        sha256: str | None,
    ) -> None:
        self.trial, self.measure, self.job = job.trial, job.measure, job
        self.notes, self.loop, self.calls, self.arms, self.sha256 = notes, loop, calls, arms, sha256
        self.eager, self.compiled = (
            Arm(name, _run_no_step, eager=name == "eager") for name in ARMS
        )
        self.loops: dict[str, LoopRun] = {}  # by arm
        self.trajectory: Trajectory | None = None
        self.has_begun = False

    def begin(self) -> list[torch.nn.Module]:
        """The modules to compile, of which the device is read."""
        parameters = (
            item
            for group in next(iter(self.loop.optimizers.values())).param_groups
            for item in group["params"]
        )
        self.device = next(parameters).device
        self.bench = LoopBench(self.device, self.arms, self.loop.interruptions)
        self.monitor = LoopMonitor(self.device, self.loop, self.arms.counters)
        self.monitor.set_baseline()
        self.has_begun = True
        return list(self.loop.modules.modules)


def _run_no_step(_batch: Batch) -> object:
    raise AssertionError("the script's loop runs the steps of its arms")
