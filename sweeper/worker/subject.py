"""What is measured, as `session` measures it: a model whose steps are calls of ours, or a script
whose own loop runs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch

from sweeper.core.record import ARMS, OTHERS_BUSY, HostState, Latencies
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial

from .compilation import artifacts
from .measurement import readings
from .measurement.bench import Arm, Bench, Steps, Timed, latency, measure_rounds
from .monitoring.host_monitor import HostMonitor
from .monitoring.round_monitor import RoundMonitor
from .process_log import ProcessLog

MAX_ROUNDS_AGAIN = 10  # since others disturbed them


class Subject(ABC):
    """Both arms, and the bench that runs their steps. What a model and a script do differently has
    a method here, in the order of events.
    """

    trial: Trial
    measure: Measure
    device: torch.device
    bench: Bench
    monitor: RoundMonitor
    eager: Arm
    compiled: Arm
    # whether this process did nothing else before its first step
    is_whole_process = True

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.eager, self.compiled

    @abstractmethod
    def run_eager(self, log: ProcessLog, /) -> Steps[None]:
        """Run the first steps, before anything is compiled."""

    @abstractmethod
    def compile(self, log: ProcessLog) -> None:
        """Make the compiled arm, and the counters of the log; the compiler itself runs in the
        first compiled step.
        """

    def check_first_steps(self) -> None:  # noqa: B027  # the loss of a script is its own affair
        """Raise a Failure where the first compiled steps went wrong."""

    @abstractmethod
    def require_compiled(self) -> None:
        """Raise NotCompiledError where the compiled arm runs nothing compiled."""

    def check_before_rounds(self, log: ProcessLog) -> None:  # noqa: B027  # a script is judged last
        """Judge what was compiled, and take the device alone."""

    def warm_up(self, log: ProcessLog) -> Steps[None]:
        """Run each arm until its step time is flat, and choose K unless an earlier process has
        chosen it.
        """
        eager_s, eager_flat = yield from self.bench.warm_up(self.eager, self.measure.warmup_s)
        compiled_s, compiled_flat = yield from self.bench.warm_up(
            self.compiled, self.measure.warmup_s
        )
        steps = log.known.steps_per_block
        if not steps:
            faster = self.compiled if compiled_s < eager_s else self.eager
            least_s = min(eager_s, compiled_s)
            steps = yield from self.bench.steps_per_block(faster, least_s, self.measure)
        log.add(warm_up_flat=eager_flat and compiled_flat, steps_per_block=steps)
        # now with the code that was compiled during the warm-up
        log.add(**artifacts.read_fingerprints())

    def time_rounds(self, log: ProcessLog) -> Steps[None]:
        """Time rounds of both arms; what is known after each round stays, should the steps end.

        Raises a Failure where what was timed is not what was to be timed.
        """
        host, steps = HostMonitor(), log.process.steps_per_block or 1
        steps_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.monitor.rounds_again = min(self.measure.rounds, MAX_ROUNDS_AGAIN)

        def note(timed: Timed) -> None:
            reasons = [item.void for item in log.process.rounds]
            log.add(rounds=(*log.process.rounds, timed.round))
            if timed.round.void == OTHERS_BUSY and OTHERS_BUSY not in reasons:
                log.note(f"{OTHERS_BUSY}, so rounds are taken again")
            if timed.round.void is not None:
                return
            for arm, times in timed.steps_s.items():
                steps_s[arm] += times
            if timed.steps_s:
                log.add(latencies=Latencies(*map(latency, steps_s.values())))
            if self.trial.mode != "eager":
                log.add(compile_s=log.process.beyond_steady_s)

        try:
            yield from measure_rounds(
                self.bench, self.arms, steps, self.measure, self.monitor, note, log.slot.index
            )
        finally:
            before = log.process.host.busy_while_compiling if log.process.host else None
            state = HostState(before, self.monitor.share_busy_by_others, host.throttled_s())
            changed = dict(self.monitor.changed_flags)
            log.add(gpu=self.monitor.gpu.state(), host=state, changed_settings=changed)
        self.require_compiled()

    def finish_rounds(self, log: ProcessLog) -> None:  # noqa: B027  # a script goes on
        """Do what needs the compiled arm alone."""

    def take_readings(self, log: ProcessLog) -> Steps[None]:
        """Take the readings of both arms that belong to no round: joules, and seconds of host and
        device.
        """
        if self.measure.energy:
            with log.enter("energy"):
                yield from readings.measure_energy(self.bench, self.arms, self.monitor.gpu, log)
        # last, since launches take longer in a process that has profiled
        with log.enter("profiling"):
            if self.bench.device.type == "cuda":
                yield from readings.profile(self.bench, self.arms, log)

    def check_at_end(self, log: ProcessLog) -> Iterable[None]:  # noqa: ARG002
        """Judge what can only be judged when nothing else is left to measure."""
        return ()
