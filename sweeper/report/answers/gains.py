"""What a mode gains over eager: the speedup that people see, between which ends it lies, and what
makes it unsure.

The clock is the step's, or of a user's own script that of the whole loop, with its loader: its user
waits for that. Device time stands beside it, since no host disturbs it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.flags import DOUBTS, FLAGS, UNVERIFYING
from sweeper.analysis.margins import single_process_margin
from sweeper.analysis.stats import Estimate
from sweeper.core.libraries import SCRIPT
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import interval, ratio

MIN_GAIN = 0.05  # a smaller speedup is none


@dataclass(frozen=True)
class Gain:
    """How many times as fast as eager a mode is."""

    value: float
    low: float
    high: float
    by_margin: bool = False  # one process: the ends are those of `MARGINS`
    waits: bool = False  # for a host, and too few processes show for how long

    @property
    def bounds(self) -> str:
        """Both ends, e.g. `[1.25, 1.31]`, or `(1.25 to 1.31)` by the margin of one process."""
        if self.by_margin:
            return f"({ratio(self.low)} to {ratio(self.high)})"
        return interval(self.low, self.high)

    @property
    def share(self) -> float:
        """The share by which an end lies away from the value, the nearer end."""
        return min(self.high / self.value, self.value / self.low) - 1


@dataclass(frozen=True)
class Candidate:
    """A mode whose result is right. Seconds are wall seconds per step."""

    entry: Entry
    gain: Gain
    device: Gain | None
    eager_s: float
    of_loop: bool  # whether it is a script's loop that was timed

    @property
    def name(self) -> str:
        return name_mode(self.entry)

    @property
    def clock(self) -> str:
        """What was timed of a script, before its speedup; "" of other models."""
        if self.of_loop:
            return "loop "
        return "step " if self.entry.trial.workload == SCRIPT else ""

    @property
    def compile_s(self) -> float | None:
        """Seconds of compiling with an empty cache."""
        return self.entry.result.compile_cold_s

    @property
    def peak_bytes(self) -> float | None:
        return self.entry.result.compiled_peak_memory_bytes

    @property
    def break_even_steps(self) -> float | None:
        """Steps until compiling has paid; None: it never does, or its compile time is not known."""
        return self.entry.result.break_even_steps

    def total_s(self, steps: int) -> float | None:
        """Seconds of a job of `steps` steps, compiling included."""
        if self.compile_s is None:
            return None
        return self.compile_s + steps * self.eager_s / self.gain.value

    def turn(self, steps: int | None) -> float:
        """The speedup at which the answer turns: compiling must gain `MIN_GAIN`, and in a job of
        `steps` steps pay back; infinite where no speedup does.
        """
        turn = 1 + MIN_GAIN
        if steps is None or self.compile_s is None:
            return turn
        left = 1 - self.compile_s / (steps * self.eager_s)
        return max(turn, 1 / left) if left > 0 else math.inf

    def gains(self, steps: int | None) -> bool:
        return self.gain.low > self.turn(steps)

    def may_gain(self, steps: int | None) -> bool:
        """Whether it is faster as measured and by the device, though not between all ends."""
        turn = self.turn(steps)
        return self.gain.value > turn and bool(self.device and self.device.low > turn)

    def fails_to_gain(self, steps: int | None) -> bool:
        return self.gain.high < self.turn(steps)

    @property
    def waits_for_host(self) -> bool:
        """Whether the device waits for the host in a compiled step."""
        return self.entry.result.host_bound_arms in ("compiled", "both")

    @property
    def may_gain_from_graphs(self) -> bool:
        """Whether its step would gain if the device never waited for the host, or may."""
        waits = self.entry.result.compiled_waits_fraction
        of_inductor = self.entry.trial.backend == "inductor"
        return of_inductor and (waits is None or self.gain.value > (1 + MIN_GAIN) * (1 - waits))

    def why_unsure(self, steps: int | None) -> tuple[str, ...]:
        """Say what keeps its answer from being sure, in the words of `explain`."""
        reasons = []
        if self.gain.by_margin:
            reasons.append("one process")
        elif self.gain.low <= self.turn(steps) <= self.gain.high:
            reasons.append("the interval reaches both answers")
        if not UNVERIFYING.isdisjoint(self.entry.flags):
            reasons.append("unverified")
        turn = self.turn(steps)
        distance = math.inf if math.isinf(turn) else abs(math.log(self.gain.value / turn))
        moving = []
        for flag, share in self.entry.disturbances.items():
            if math.log1p(share) > max(distance, math.log1p(self.gain.share)):
                moving.append(FLAGS[flag].cause)
        if moving:
            reasons.append(f"disturbed: {', '.join(dict.fromkeys(moving))}")
        if steps is not None and "compile_contended" in self.entry.flags:
            reasons.append("its compile time is an upper bound")
        return tuple(reasons)


def find_doubts(entry: Entry) -> tuple[str, ...]:
    """List the flags that say that a speedup may be off by more than its interval shows."""
    one = find_candidate(entry) if entry.is_ok else None
    shown = one.gain.share if one else 0.0
    doubts = []
    for flag in entry.flags:
        if flag in DOUBTS and entry.disturbances.get(flag, math.inf) > shown:
            doubts.append(flag)
    return tuple(doubts)


class ModeOption(NamedTuple):
    """A mode as a command takes it."""

    mode: str
    backend: str | None  # None: Inductor

    @property
    def name(self) -> str:
        return f"{self.mode} {self.backend}" if self.backend else self.mode


def find_option(entry: Entry) -> ModeOption:
    trial = entry.trial
    return ModeOption(trial.mode, None if trial.backend == "inductor" else trial.backend)


def name_mode(entry: Entry) -> str:
    """Return what to type: the mode, or the backend where the backend has no modes."""
    trial = entry.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    if trial.mode == "default":
        return str(trial.backend)
    return f"{trial.mode} with {trial.backend}"


def find_candidate(entry: Entry) -> Candidate | None:
    """Find what a trial that is ok measured: of a script its loop, where that was timed."""
    result, device = entry.result, entry.trial.device
    of_device = _bound(result.device_estimate, [], device, False)
    if result.loop_estimate and result.eager_loop_step_s:
        loop = _bound(result.loop_estimate, [], device, True)
        assert loop is not None
        return Candidate(entry, loop, of_device, result.eager_loop_step_s, of_loop=True)
    ends = [end for end in (result.speedup_min, result.speedup_max) if end is not None]
    scatters = result.host_bound_arms is not None or "unsteady" in entry.flags
    step = _bound(result.estimate, ends, device, scatters)
    if step is None or result.eager_step_s is None:
        return None
    return Candidate(entry, step, of_device, result.eager_step_s, of_loop=False)


def _bound(
    estimate: Estimate | None, ends: Sequence[float], device: str, scatters: bool
) -> Gain | None:
    """Give a speedup its interval; without one the ends of its processes, or those of the margin
    of a single process.
    """
    if estimate is None:
        return None
    value = estimate.ratio
    bounds = estimate.interval()
    if bounds:
        return Gain(value, bounds.low, bounds.high)
    waits = scatters or device == "cpu"
    if ends:
        return Gain(value, min(ends), max(ends), waits=waits)
    times = 1 + single_process_margin(device, scatters)
    return Gain(value, value / times, value * times, by_margin=True, waits=waits)
