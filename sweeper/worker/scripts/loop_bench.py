"""A bench on which a script's own loop runs the steps, and what it watches in them beside the
GPU.
"""

from collections.abc import Iterable

import torch

from sweeper.core.record import READ_LOADER, SAVED_FILE
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.measurement import memory
from sweeper.worker.measurement.bench import Arm, Bench, Steps
from sweeper.worker.monitoring.round_monitor import RoundMonitor

from .arms import Arms
from .interruptions import Interruptions
from .loop import Loop, run_steps


class LoopBench(Bench):
    """Has the script's loop run the steps; its sizes are the recorded batches that its loader gives
    in turn.

    No stance makes what compiles again fail, since libraries may compile code of their own:
    `LoopMonitor` sees it.
    """

    def __init__(self, device: torch.device, arms: Arms, interruptions: Interruptions) -> None:
        super().__init__(device)
        self._arms, self._interruptions = arms, interruptions

    def run(self, arm: Arm, steps: int, stance: str = "default") -> Iterable[None]:  # noqa: ARG002  # see above
        """Run an arm from now on; the loop has to run its steps."""
        self._arms.switch(arm.name)
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
        happened = {
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
