"""What a mode gains over eager: the speedup that people see, between which ends it lies, and what
makes it unsure.

The clock is the step's, or of a user's own script that of the whole loop, with its loader: its user
waits for that. Device time stands beside it, since no host disturbs it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from sweeper.analysis.flags import DOUBTS, FLAGS, UNVERIFYING
from sweeper.analysis.margins import single_process_margin
from sweeper.analysis.result import Result
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
    steps: int | None  # of the job; None: its length is not known, or does not matter

    @property
    def name(self) -> str:
        return name_mode(self.entry)

    @property
    def result(self) -> Result:
        return self.entry.result

    @property
    def clock(self) -> str:
        """What was timed of a script, before its speedup; "" of other models."""
        if self.of_loop:
            return "loop "
        return "step " if self.entry.trial.workload == SCRIPT else ""

    @property
    def shown(self) -> str:
        """The speedup as text, e.g. `1.28`, or of a script `loop 1.28`."""
        return f"{self.clock}{ratio(self.gain.value)}"

    def total_s(self, steps: int) -> float | None:
        """Seconds of a job of `steps` steps, compiling with an empty cache included."""
        compile_s = self.result.compile_cold_s
        if compile_s is None:
            return None
        return compile_s + steps * self.eager_s / self.gain.value

    @property
    def turn(self) -> float:
        """The speedup at which the answer turns: compiling must gain `MIN_GAIN`, and in a job of
        known length pay back; infinite where no speedup does.
        """
        turn, compile_s = 1 + MIN_GAIN, self.result.compile_cold_s
        if self.steps is None or compile_s is None:
            return turn
        left = 1 - compile_s / (self.steps * self.eager_s)
        return max(turn, 1 / left) if left > 0 else math.inf

    @property
    def may_gain(self) -> bool:
        """Whether it is faster as measured and by the device, though not between all ends."""
        return self.gain.value > self.turn and bool(self.device and self.device.low > self.turn)

    @property
    def waits_for_host(self) -> bool:
        """Whether the device waits for the host in a compiled step."""
        return self.result.host_bound_arms in ("compiled", "both")

    @property
    def why_unsure(self) -> tuple[str, ...]:
        """What keeps its answer from being sure, in the words of `explain`."""
        reasons = []
        if self.gain.by_margin:
            reasons.append("one process")
        elif self.gain.low <= self.turn <= self.gain.high:
            reasons.append("the interval reaches both answers")
        if not UNVERIFYING.isdisjoint(self.entry.flags):
            reasons.append("unverified")
        distance = abs(math.log(self.gain.value) - math.log(self.turn))
        reach = max(distance, math.log1p(self.gain.share))
        shares = self.entry.disturbances.items()
        moving = dict.fromkeys(
            FLAGS[flag].cause for flag, share in shares if math.log1p(share) > reach
        )
        if moving:
            reasons.append(f"disturbed: {', '.join(moving)}")
        if self.steps is not None and "compile_contended" in self.entry.flags:
            reasons.append("its compile time is an upper bound")
        return tuple(reasons)


def find_doubts(entry: Entry) -> tuple[str, ...]:
    """List the flags that say that a speedup may be off by more than its interval shows."""
    one = find_candidate(entry)
    shown = one.gain.share if one else 0.0
    doubts = []
    for flag in entry.flags:
        if flag in DOUBTS and entry.disturbances.get(flag, math.inf) > shown:
            doubts.append(flag)
    return tuple(doubts)


def name_mode(entry: Entry) -> str:
    """Return what to type: the mode, or the backend where the backend has no modes."""
    trial = entry.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    if trial.mode == "default":
        return str(trial.backend)
    return f"{trial.mode} with {trial.backend}"


@lru_cache(maxsize=2**16)  # figures, tables and answers ask again and again
def find_candidate(entry: Entry, steps: int | None = None) -> Candidate | None:
    """Find what a trial that is ok measured, for a job of `steps` steps: of a script its loop,
    where that was timed.
    """
    result, device = entry.result, entry.trial.device
    of_device = _bound(result.device_speedup, device, False)
    loop, eager_s = _bound(result.loop_speedup, device, True), result.loop_step_s.eager
    if loop and eager_s:
        return Candidate(entry, loop, of_device, eager_s, True, steps)
    ends = result.speedup_min, result.speedup_max
    scatters = result.host_bound_arms is not None or "unsteady" in entry.flags
    step, eager_s = _bound(result.speedup, device, scatters, ends), result.step_s.eager
    if step is None or eager_s is None:
        return None
    return Candidate(entry, step, of_device, eager_s, False, steps)


def _bound(
    estimate: Estimate | None,
    device: str,
    scatters: bool,
    ends: tuple[float | None, float | None] = (None, None),
) -> Gain | None:
    """Give a speedup its interval; without one the ends of its processes, or those of the margin
    of a single process.
    """
    if estimate is None:
        return None
    value, bounds = estimate.ratio, estimate.interval()
    if bounds:
        return Gain(value, *bounds)
    waits = scatters or device == "cpu"
    low, high = ends
    if low and high:
        return Gain(value, low, high, waits=waits)
    times = 1 + single_process_margin(device, scatters)
    return Gain(value, value / times, value * times, by_margin=True, waits=waits)
