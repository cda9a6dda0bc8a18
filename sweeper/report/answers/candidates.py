"""The modes that a recommendation chooses from: what each gains, by which clock, and how far that
is to be believed.

The clock is the step's, or of a user's own script that of the whole loop, with its loader: its user
waits for that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sweeper.analysis.flags import DOUBTS
from sweeper.analysis.stats import Estimate, difference
from sweeper.loading.entries import Entry

# The doubts that say that the machine moved the figure, by cause. One cause moves it within a
# margin; two of them together gave a speedup of 7 on a loaded machine.
CAUSES_OF_DOUBT = (
    frozenset({"host_bound", "unsteady", "eager_moved"}),
    frozenset({"host_busy", "shared_gpu"}),
    frozenset({"clock_mismatch", "throttled"}),
    frozenset({"recompiled", "several_artifacts", "unequal_settings"}),
)
# These flags describe the rounds. A loop is not timed in rounds.
OF_ROUNDS = frozenset({"host_bound", "unsteady", "eager_moved", "clock_mismatch", "throttled"})
MAX_SPAN = 2.0  # upper / lower end of an interval: beyond it the figure says little
# Step times of a single process repeat within 1.3 % where the device does not wait for the host, on
# H200s (docs/results/h200-scheduling.md); other machines get some room.
NOISE = 0.05
# Where it waits, the same trial twice gave wall speedups of 3.55 and 4.04 (mobilenet_v2, 14 %
# apart, docs/results/h200-repeatability.md), and of 1.88 and 2.56 (resnet50, 36 % apart,
# docs/results/h200-scheduling.md).
HOST_NOISE = 0.36


@dataclass(frozen=True)
class Times:
    """What decides of a trial: its step, or of a script its whole loop. Seconds are wall seconds
    per step.
    """

    eager: Estimate  # of log seconds
    compiled: Estimate  # of log seconds
    speedup: Estimate
    low: float | None = None  # ends of the interval of the speedup
    high: float | None = None
    # of the speedup; None with a single process
    range_of_processes: tuple[float, float] | None = None
    of_loop: bool = False

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval, or of the range of the processes; None where neither is
        known.
        """
        if self.low is None or self.high is None:
            return self.range_of_processes
        return self.low, self.high

    def saved_s(self, compile_s: float, steps: int, speedup: float | None) -> float | None:
        """Return the seconds that compiling saves over so many steps, at this speedup; below 0 it
        loses.
        """
        if speedup is None:
            return None
        saved_s = steps * self.eager.ratio * (1 - 1 / speedup) - compile_s
        if math.isfinite(saved_s):
            return saved_s
        return None


@dataclass(frozen=True)
class Candidate:
    """A mode whose result is right. Seconds are wall seconds.

    `eager` is the step that its speedup is over: of all trials, or of its own trial where they do
    not agree.
    """

    entry: Entry
    times: Times
    eager: Estimate  # of log seconds
    eager_waits: bool  # whether this eager step waits for the host
    speedup: Estimate
    pace: Estimate  # what modes are compared by: steps per second, or with `is_paired` the speedup
    is_paired: bool = False  # whether the eager step is that of its own trial

    @property
    def name(self) -> str:
        return name_mode(self.entry)

    @property
    def compile_s(self) -> float | None:
        """Seconds of compiling with an empty cache."""
        return self.entry.result.compile_cold_s

    @property
    def peak_bytes(self) -> float | None:
        return self.entry.result.compiled_peak_memory_bytes

    @property
    def waits(self) -> bool:
        """Whether its compiled step waits for the host."""
        return self.entry.result.host_bound_arms in ("compiled", "both")

    @property
    def margin(self) -> float:
        """The share by which it must be faster than eager where no test is possible."""
        if self.waits or self.eager_waits:
            return HOST_NOISE
        return NOISE

    @property
    def unknown(self) -> str:
        """Say why its speedup is not known; empty where it is known."""
        low, high = self.times.ends or (1.0, 1.0)
        if high / low >= MAX_SPAN:
            return f"its speedup lies anywhere from {low:.2f} to {high:.2f}"
        met = [cause.intersection(self.doubts) for cause in CAUSES_OF_DOUBT]
        if sum(map(bool, met)) > 1:
            return f"doubts meet: {', '.join(sorted(frozenset().union(*met)))}"
        step = self.entry.result.speedup
        loop_gains = self.times.of_loop and self.own_speedup > 1 + NOISE
        if loop_gains and step is not None and step <= 1:
            return f"its steps gain nothing ({step:.2f})"
        return ""

    @property
    def may_pay(self) -> bool:
        """Whether its speedup is not known, and may lie above eager's."""
        return bool(self.unknown) and (self.times.ends is None or self.times.ends[1] > 1 + NOISE)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The doubt flags of what decides; where it has its own eager step, that others moved does
        not matter.
        """
        counting = set(DOUBTS)
        if self.times.of_loop:
            counting -= OF_ROUNDS
        elif self.is_paired:
            counting.discard("eager_moved")
        return tuple(flag for flag in self.entry.flags if flag in counting)

    @property
    def gains_from_graphs(self) -> bool:
        """Whether its compiled step would be faster than eager if the device never waited for the
        host.
        """
        speedup, waits = self.entry.result.speedup, self.entry.result.compiled_waits_fraction
        return speedup is None or waits is None or speedup > (1 + NOISE) * (1 - waits)

    @property
    def described_speedup(self) -> str:
        where = " in its loop" if self.times.of_loop else ""
        return f"{self.own_speedup:.2f} times eager's speed{where}"

    @property
    def own_speedup(self) -> float:
        """The speedup that people see: over the eager step of its own trial, as in every other
        table.
        """
        return self.times.speedup.ratio

    @property
    def described_margin(self) -> str:
        if self.speedup.variance is not None:
            return "beyond noise"
        why = ", as a step waits for the host" if self.margin == HOST_NOISE else ""
        return f"by more than {100 * self.margin:.0f} %{why}"

    def total_s(self, steps: int | None) -> float | None:
        """Seconds of a job of `steps` steps, compiling included."""
        if steps is None or self.compile_s is None:
            return None
        return self.compile_s + steps * self.times.compiled.ratio

    def total_share(self, steps: int) -> float:
        """The same as a share of these steps in eager, which compares modes whose eager steps do
        not agree.
        """
        return (self.total_s(steps) or math.inf) / (steps * self.eager.ratio)


def name_mode(entry: Entry) -> str:
    """Return what to type: the mode, or the backend where the backend has no modes."""
    trial = entry.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    if trial.mode == "default":
        return str(trial.backend)
    return f"{trial.mode} with {trial.backend}"


class ModeOption(NamedTuple):
    """A mode as a command takes it."""

    mode: str
    backend: str | None  # None: Inductor

    @property
    def name(self) -> str:
        if self.backend:
            return f"{self.mode} {self.backend}"
        return self.mode


def find_option(entry: Entry) -> ModeOption:
    trial = entry.trial
    return ModeOption(trial.mode, None if trial.backend == "inductor" else trial.backend)


def find_times(entry: Entry) -> Times | None:
    """Find what decides of a trial: of a script its loop, where that was timed."""
    result = entry.result
    eager_s = result.eager_loop_step_s
    if result.loop_estimate and eager_s:
        eager = Estimate(math.log(eager_s))
        compiled = Estimate(eager.log - result.loop_estimate.log)
        ends = result.loop_speedup_low, result.loop_speedup_high
        return Times(eager, compiled, result.loop_estimate, *ends, of_loop=True)
    if not (result.eager_estimate and result.compiled_estimate and result.estimate):
        return None
    low, high = result.speedup_min, result.speedup_max
    range_of_processes = None if low is None or high is None else (low, high)
    times = result.eager_estimate, result.compiled_estimate, result.estimate
    return Times(*times, result.speedup_low, result.speedup_high, range_of_processes)


def compare_with_all(found: Mapping[Entry, Times], eager: Estimate) -> list[Candidate]:
    """Compare each compiled step with the eager step over all trials."""
    eager_waits = any(map(_eager_waits, found))
    candidates = []
    for entry, times in found.items():
        speedup = difference(eager, times.compiled)
        pace = replace(times.compiled, log=-times.compiled.log)
        candidates.append(Candidate(entry, times, eager, eager_waits, speedup, pace))
    return candidates


def compare_with_own(found: Mapping[Entry, Times]) -> list[Candidate]:
    """Compare each compiled step with the eager step of its own trial."""
    candidates = []
    for entry, times in found.items():
        waits = _eager_waits(entry)
        own = Candidate(entry, times, times.eager, waits, times.speedup, times.speedup, True)
        candidates.append(own)
    return candidates


def _eager_waits(entry: Entry) -> bool:
    return entry.result.host_bound_arms in ("eager", "both")
