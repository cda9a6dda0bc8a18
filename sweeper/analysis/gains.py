"""What compiling gains over eager: the speedup that people see, between which ends it lies, and
what keeps the answer from being sure.

The clock is the step's, or of a user's own script that of the whole loop, with its loader: its user
waits for that. Device time stands beside it, since no host disturbs it. The runner of a trial asks
`can_become_sure` after each process, and reports make their answers of the same rules.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.core.record import Record
from sweeper.core.settings import Measure

from .flags import FLAGS, UNVERIFYING, find_disturbances, find_flags
from .margins import find_margin, find_unsampled, single_process_margin
from .result import Result
from .stats import Estimate, Interval

MIN_GAIN = 0.05  # a smaller speedup is none
ONE_PROCESS = "one process"
REACHES_BOTH = "the interval reaches both answers"
FEW_PROCESSES, FAR_APART = "few processes", "processes far apart"
NEEDS_PROCESSES = frozenset((ONE_PROCESS, REACHES_BOTH, FEW_PROCESSES, FAR_APART))


@dataclass(frozen=True)
class Gain:
    """How many times as fast as eager a mode is."""

    value: float
    low: float
    high: float
    # `low` and `high` with room for what so few processes do not show; answers are sure beyond it
    room: Interval
    by_margin: bool = False  # one process: the ends are those of `MARGINS`
    by_range: bool = False  # few processes, no interval: the ends are those of the processes
    waits: bool = False  # for a host, and too few processes show for how long
    is_far_apart: bool = False  # its ends, by more than one process alone may be off

    @property
    def share(self) -> float:
        """The share by which an end lies away from the value, the nearer end."""
        return min(self.high / self.value, self.value / self.low) - 1


@dataclass(frozen=True)
class TrialGain:
    """What a trial shows, of which the result is right. Seconds are wall seconds per step."""

    device_type: str  # cpu or cuda
    result: Result
    flags: Sequence[str]
    disturbances: Mapping[str, float]
    gain: Gain
    device: Gain | None
    eager_s: float
    of_loop: bool  # whether it is a script's loop that was timed
    # whether neighbours on a CPU may have slowed down a script's loops by any share: loops are not
    # measured in pairs, and threads that lose a core keep the others waiting
    is_unbounded: bool
    steps: int | None  # of the job; None: its length is not known, or does not matter

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
    def may_reach(self) -> bool:
        """Whether its speedup may lie above the point at which the answer turns."""
        return self.turn < math.inf and (self.is_unbounded or self.gain.high >= self.turn)

    @property
    def by_device(self) -> bool:
        """Whether the gain is that of the device's time."""
        return self.gain is self.device

    def by_device_time(self) -> "TrialGain | None":
        """The same trial with the time of the device as its clock; None where that is not known, or
        a script's loop was timed.
        """
        eager_s = self.result.device_step_s.eager
        if self.of_loop or self.device is None or eager_s is None:
            return None
        return replace(self, gain=self.device, eager_s=eager_s)

    @property
    def why_unsure(self) -> tuple[str, ...]:
        """What keeps its answer from being sure, in the words of `explain`."""
        reasons = []
        if self.gain.by_margin:
            reasons.append(ONE_PROCESS)
        elif self.gain.low <= self.turn <= self.gain.high:
            reasons.append(REACHES_BOTH)
        elif self.gain.room.low <= self.turn <= self.gain.room.high:
            reasons.append(FEW_PROCESSES)
        elif self.gain.is_far_apart:
            reasons.append(FAR_APART)
        if not UNVERIFYING.isdisjoint(self.flags):
            reasons.append("unverified")
        distance = abs(math.log(self.gain.value) - math.log(self.turn))
        reach = max(distance, math.log1p(self.gain.share))
        moving = dict.fromkeys(
            FLAGS[flag].cause
            for flag, share in self.disturbances.items()
            if math.log1p(share) > reach or (self.is_unbounded and flag == "host_busy")
        )
        if moving:
            reasons.append(f"disturbed: {', '.join(moving)}")
        if self.steps is not None and "compile_contended" in self.flags:
            reasons.append("its compile time is an upper bound")
        return tuple(reasons)


def can_become_sure(record: Record, result: Result, measure: Measure) -> bool:
    """Whether the answer that a trial gives so far is not sure, and more processes may make it
    so.
    """
    found = find_gain_so_far(record, result, measure)
    if found is None:  # every round was void
        return True
    why = found.why_unsure
    return "unverified" not in why and not NEEDS_PROCESSES.isdisjoint(why)


def find_gain_so_far(record: Record, result: Result, measure: Measure) -> TrialGain | None:
    """Find what a trial shows that has not ended, so that its record has no flags yet."""
    return read_gain(replace(record, flags=find_flags(record, result, measure)), result)


def choose_clock(in_code: bool, one: TrialGain, other: TrialGain) -> tuple[TrialGain, TrialGain]:
    """Two trials that differ in a feature of the compiler alone, as they are compared: a feature
    that is all `in_code` by the time of the device, which no host disturbs, where both have it.
    """
    first, second = one.by_device_time(), other.by_device_time()
    if not in_code or first is None or second is None:
        return one, other
    return first, second


def differ(one: TrialGain, other: TrialGain) -> bool:
    """Whether two modes are told apart: by the clock of their answers, or by that of the device,
    where the other one has them in the same order and further apart than draws explain, whatever a
    host did.
    """
    if lie_apart(one, other):
        return True
    of_device = choose_clock(True, one, other)
    speedups, steps = _find_distances(one, other)
    device_speedups, _ = _find_distances(*of_device)
    draws = math.log1p(find_margin(one.device_type).row)
    agree = speedups * steps > 0 and speedups * device_speedups > 0
    return agree and min(abs(speedups), abs(steps)) > draws and lie_apart(*of_device)


def lie_apart(one: TrialGain, other: TrialGain) -> bool:
    """Whether two trials are told apart by their own clock: both their speedups and their compiled
    steps lie further apart than draws and hosts explain that were not sampled, and the noise of
    their processes.
    """
    gains = one.gain, other.gain
    speedups, steps = _find_distances(one, other)
    noise = math.hypot(*(math.log1p(gain.share) for gain in gains if not gain.by_margin))
    draws, host = _find_unsampled(one, other)
    reach = draws + max(host, noise)
    return speedups * steps > 0 and min(abs(speedups), abs(steps)) > reach


def are_alike(one: TrialGain, other: TrialGain) -> bool:
    """Whether two trials differ by no more than draws of one program do, at both ends of the
    interval between them; never where a host may have slowed either of them.
    """
    noise = math.hypot(*(math.log1p(gain.share) for gain in (one.gain, other.gain)))
    _, host = _find_unsampled(one, other)
    distance = max(map(abs, _find_distances(one, other)))
    return not host and distance + noise <= math.log1p(find_margin(one.device_type).row)


def can_be_compared(in_code: bool, found: TrialGain) -> bool:
    """Whether a trial is known well enough to compare a feature with it.

    By the time of the device, its interval of three processes leaves the feature half of what draws
    of one program differ by. For CUDA graphs, its wall time has an interval even if it waits for
    its host. Where code is compared by wall time, as on a CPU, no more processes are worth it.
    """
    one, _ = choose_clock(in_code, found, found)
    if not one.by_device:
        return in_code or not one.gain.waits
    has_three = one.result.processes >= 3
    return has_three and one.gain.share <= find_margin(one.device_type).row / 2


def can_be_told(one: TrialGain, other: TrialGain) -> bool:
    """Whether more processes of `other` may tell both apart or show that they are alike: whether
    an end of its interval would, or what lies nearest to `one`, were it known for sure.
    """
    low, high = other.gain.low, other.gain.high
    for value in (low, high, min(max(one.gain.value, low), high)):
        known = replace(other, gain=Gain(value, value, value, Interval(value, value)))
        if lie_apart(one, known) or are_alike(one, known):
            return True
    return False


def _find_distances(one: TrialGain, other: TrialGain) -> tuple[float, float]:
    """Find the logs by which two speedups and two compiled steps lie apart."""
    speedups = math.log(one.gain.value / other.gain.value)
    return speedups, speedups - math.log(one.eager_s / other.eager_s)


def _find_unsampled(one: TrialGain, other: TrialGain) -> tuple[float, float]:
    samples_draws = {one.result.interval, other.result.interval} == {"draws"}
    samples_host = not (one.gain.waits or other.gain.waits)
    return find_unsampled(one.device_type, samples_draws, samples_host)


def beats(one: TrialGain, other: TrialGain) -> bool:
    """Whether no answer takes a mode, since another is told to be faster: over a job of known
    length with its compilation, and verified.
    """
    if not UNVERIFYING.isdisjoint(one.flags) or one.is_unbounded:
        return False
    if one.gain.value <= other.gain.value:
        return False
    if other.steps is not None:
        own_s, other_s = one.total_s(other.steps), other.total_s(other.steps)
        if own_s is None or other_s is None or own_s >= other_s:
            return False
    return differ(one, other)


def read_gain(record: Record, result: Result) -> TrialGain | None:
    """Find what a record shows by itself, for a job as long as the user or the script says;
    `eager_moved` takes a comparison with other trials.
    """
    steps = record.trial.labels.total_steps or result.length
    return find_gain(record.trial.device, result, record.flags, find_disturbances(record), steps)


def find_gain(
    device: str,
    result: Result,
    flags: Sequence[str],
    disturbances: Mapping[str, float],
    steps: int | None,
) -> TrialGain | None:
    """Find what a trial that is ok shows, for a job of `steps` steps: of a script its loop, where
    that was timed; None where nothing was.
    """
    loop, eager_s = result.loop_speedup, result.loop_step_s.eager
    of_device = _bound(result.device_speedup, device, False)
    of_loop = bool(loop and eager_s)
    if of_loop:
        gain = _bound(loop, device, True)
    else:
        eager_s = result.step_s.eager
        is_host_bound = result.host_bound_arms is not None
        scatters = is_host_bound or "unsteady" in flags
        ends = result.speedup_min, result.speedup_max
        gain = _bound(result.speedup, device, scatters, ends, result.processes, is_host_bound)
    if gain is None or eager_s is None:
        return None
    is_unbounded = of_loop and device == "cpu" and "host_busy" in disturbances
    return TrialGain(
        device, result, flags, disturbances, gain, of_device, eager_s, of_loop, is_unbounded, steps
    )


def _bound(
    estimate: Estimate | None,
    device: str,
    scatters: bool,
    ends: tuple[float | None, float | None] = (None, None),
    processes: int = 1,
    is_host_bound: bool = False,
) -> Gain | None:
    """Give a speedup its interval; without one the ends of its processes, or those of the margin
    of a single process.

    What a few processes do not show is a share of what one does not: of two processes all of it,
    of three a half, of four a third.
    """
    if estimate is None:
        return None
    value, bounds, waits = estimate.ratio, estimate.interval(), scatters or device == "cpu"
    of_one = single_process_margin(device, scatters)
    more = 1 + of_one / max(processes - 1, 1)
    if bounds:
        if not is_host_bound:
            more = 1 + find_margin(device).program / max((estimate.count or 1) - 1, 1)
        room = Interval(min(bounds.low, value / more), max(bounds.high, value * more))
        gain = Gain(value, *bounds, room)
        return replace(gain, is_far_apart=gain.share > single_process_margin(device, True))
    low, high = ends
    if low and high:
        return Gain(value, low, high, Interval(low / more, high * more), by_range=True, waits=waits)
    low, high = value / (1 + of_one), value * (1 + of_one)
    return Gain(value, low, high, Interval(low, high), by_margin=True, waits=waits)
