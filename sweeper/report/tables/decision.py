"""Which mode for this model: one choice among trials of one eager step, with the reason.

Place in the flow: `recommendations` groups entries by what is run; `choose` decides in each group.

Compiled step times are compared with the eager ones of all trials of the group together, which time the same eager
step. Differences of mean log times are tested by Welch's t over processes (over draws where there are three), p values
adjusted by Holm's rule for the number of modes. Without an interval in any of two trials there is no test: then a
difference counts from `NOISE` on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sweeper.analysis.stats import CONFIDENCE, Estimate, difference, holm, p_value, pool_estimates
from sweeper.core.backends import CONTROLS
from sweeper.core.trial import MODES
from sweeper.loading.cross_trial import disagree
from sweeper.loading.entries import Entry
from sweeper.report.formatting import shortened

STAY = "stay eager"
EAGER_MOVED = "eager step times of these trials do not agree"  # a reason to look twice at a recommendation
# Step times of a single process move by as much: one H200, the same sweep twice, wall speedups of mobilenet_v2 4.04 and
# 3.55, of the others within 1 % (docs/results/h200-repeatability.md).
NOISE = 0.05
ALIKE = 0.10  # compile times that lie nearer together do not decide between modes that are equally fast
DOUBTS = ("accuracy_unverified", "shared_gpu", "host_busy", "throttled", "unsteady")  # flags named beside a choice
GIB = 2**30
MEMORY_ALIKE = 0.01  # peaks that lie nearer together do not decide either


@dataclass(frozen=True)
class Limits:
    """What the job at hand allows; None: no limit."""

    steps: int | None = None  # its length: compiling must have paid back by then
    memory_gib: float | None = None  # of a step's peak

    def __post_init__(self) -> None:
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps >= 1):
            raise ValueError(f"steps={self.steps!r}: a whole number of at least 1, e.g. 10000")
        if self.memory_gib is not None and not 0 < self.memory_gib < math.inf:
            raise ValueError(f"max_memory_gib={self.memory_gib!r}: GiB above 0, e.g. 40")

    def __str__(self) -> str:
        parts = (f"{self.steps:,} steps" if self.steps else "", f"{self.memory_gib:g} GiB" if self.memory_gib else "")
        return ", ".join(part for part in parts if part)


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Candidate:
    """A mode whose result is right. Seconds are wall seconds."""

    entry: Entry
    speedup: Estimate  # pooled eager step time / its step time
    step: Estimate  # of log seconds
    compile_s: float | None  # with an empty cache

    @property
    def name(self) -> str:
        return name_of(self.entry)

    @property
    def holds_in_its_trial(self) -> bool:
        """Whether the trial's own interval, if it has one, lies above 1: another trial's device may be a slower one."""
        low = self.entry.result.speedup_low
        return low is None or low > 1

    def total_s(self, steps: int | None) -> float | None:
        """Of a job of so many steps, compiling included."""
        return None if steps is None or self.compile_s is None else self.compile_s + steps * self.step.ratio


@dataclass(frozen=True)
class Choice:
    """What to use, None where nothing could be measured at all, and why."""

    entries: tuple[Entry, ...]
    limits: Limits
    recommended: str | None
    reason: str
    batch_size: int
    chosen: Candidate | None = None
    certainty: str | None = None  # tested, single_process or untested (host noise); None: no figures
    tied: tuple[str, ...] = ()  # other modes that are as fast as far as can be told
    ruled_out: tuple[str, ...] = ()  # `mode: why`
    eager_s: float | None = None  # a step, over all trials


def name_of(entry: Entry) -> str:
    """What to type: the mode, or the backend where that has no modes."""
    trial = entry.record.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    return str(trial.backend) if trial.mode == "default" else f"{trial.mode} with {trial.backend}"


def choose(entries: Sequence[Entry], limits: Limits) -> Choice:
    """Decide among trials of one model, batch size, workload, precision and variant; `entries` has one or more."""
    used = max(
        (entry.record.batch_size for entry in entries if entry.record.status == "ok"),
        default=entries[0].record.trial.batch_size,
    )
    refused = {entry: why for entry in entries if (why := _why_not(entry, used))}
    compared = [entry for entry in entries if entry not in refused]
    eager, eager_needs = _pooled_eager(compared), _eager_beyond(compared, limits)
    candidates = _candidates(compared, eager)
    excluded = {one.entry: why for one in candidates if (why := _beyond(one, limits, None if eager_needs else eager))}
    left = [one for one in candidates if one.entry not in excluded]
    ruled_out = tuple(f"{name_of(entry)}: {why}" for entry, why in (refused | excluded).items())
    ruled_out += (f"eager: {eager_needs}",) if eager_needs else ()
    verdicts = above([one.speedup for one in left])
    faster = [one for one, found in zip(left, verdicts, strict=True) if found and one.holds_in_its_trial]
    choice = Choice(
        tuple(entries),
        limits,
        STAY,
        "",
        used,
        certainty=_certainty(left or candidates),
        ruled_out=ruled_out,
        eager_s=eager.ratio if eager else None,
    )
    if not faster and eager_needs:
        return _whatever_fits(choice, left)
    if not faster:
        return _without(choice, candidates, left)
    return _among(choice, faster, left)


def above(ratios: Sequence[Estimate]) -> list[bool]:
    """Which of several log ratios lie above 0: tested together where they have a variance, else by `NOISE`."""
    p_values = [p_value(ratio) for ratio in ratios]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [
        ratio.log > math.log1p(NOISE) if p is None else next(adjusted) < 1 - CONFIDENCE and ratio.log > 0
        for ratio, p in zip(ratios, p_values, strict=True)
    ]


def _why_not(entry: Entry, batch_size: int) -> str | None:
    """Why a trial has no step time to compare; None where it has."""
    record = entry.record
    if record.trial.backend in CONTROLS:
        return "a control that compiles nothing"
    if record.status != "ok":
        return record.status
    if record.batch_size < batch_size:
        return f"oom with batch {batch_size}"
    return None if entry.result.compiled_estimate and entry.result.eager_estimate else "no rounds that count"


def _pooled_eager(entries: Sequence[Entry]) -> Estimate | None:
    estimates = [found for entry in entries if (found := entry.result.eager_estimate)]
    if not estimates:
        return None
    total = pool_estimates(estimates)
    noisy = any(found.variance is None and (found.count or 1) > 1 for found in estimates)  # the host holds eager up
    return Estimate(total.log, count=total.count) if noisy else total


def _candidates(entries: Sequence[Entry], eager: Estimate | None) -> list[Candidate]:
    return [
        Candidate(entry, difference(eager, step), step, entry.result.readings.get("compile_cold_s"))
        for entry in entries
        if eager and (step := entry.result.compiled_estimate)
    ]


def _beyond(one: Candidate, limits: Limits, eager: Estimate | None) -> str | None:
    """Which limit a candidate does not keep."""
    peak = one.entry.result.readings.get("compiled_peak_memory_bytes")
    if limits.memory_gib is not None and peak is not None and peak > limits.memory_gib * GIB:
        return f"needs {peak / GIB:.1f} GiB"
    if limits.steps is None or eager is None:
        return None
    total_s = one.total_s(limits.steps)
    if total_s is None:
        return "its compile time is not known"
    if total_s < limits.steps * eager.ratio:
        return None
    least = "compile_contended" in one.entry.flags  # the compile time is an upper bound
    return f"{'is not shown to' if least else 'does not'} pay back within {limits.steps:,} steps"


def _eager_beyond(entries: Sequence[Entry], limits: Limits) -> str | None:
    """How eager does not keep the limit of memory either; None where it does, or where nobody knows."""
    peaks = [peak for entry in entries if (peak := entry.result.readings.get("eager_peak_memory_bytes")) is not None]
    if limits.memory_gib is None or not peaks or min(peaks) <= limits.memory_gib * GIB:
        return None
    return f"needs {min(peaks) / GIB:.1f} GiB"


def _whatever_fits(choice: Choice, left: Sequence[Candidate]) -> Choice:
    """Eager needs too much memory: of the modes that do not, the fastest."""
    if not left:
        return replace(
            choice, recommended="nothing fits", reason="neither eager nor a mode that is right fits", eager_s=None
        )
    best = max(left, key=lambda one: one.speedup.log)
    reason = f"{_times(best)}; eager itself does not fit" + _beside(best, choice)
    return replace(choice, recommended=best.name, chosen=best, reason=reason)


def _certainty(candidates: Sequence[Candidate]) -> str | None:
    if not candidates:
        return None
    if all(one.speedup.variance is not None for one in candidates):
        return "tested"
    return "single_process" if any(one.entry.result.processes == 1 for one in candidates) else "untested"


def _without(choice: Choice, candidates: Sequence[Candidate], left: Sequence[Candidate]) -> Choice:
    """Nothing is faster than eager, or nothing is left."""
    if left:
        best = max(left, key=lambda one: one.speedup.log)
        nearest = f"nearest is {best.name}, {_times(best)}"
        return replace(choice, reason=f"no mode is faster than eager {_beyond_noise(best)}; {nearest}")
    if candidates:
        return replace(choice, reason="every mode that is right is beyond the limits given")
    if any(entry.record.judges_the_compiler for entry in choice.entries):
        return replace(choice, reason="no mode gave a right result")
    statuses = sorted({entry.record.status for entry in choice.entries})
    return replace(choice, recommended=None, reason=f"nothing could be compared: {', '.join(statuses)}")


def _among(choice: Choice, faster: Sequence[Candidate], left: Sequence[Candidate]) -> Choice:
    """The fastest of those that are faster than eager, or the one of its equals that costs least."""
    steps = choice.limits.steps
    best = max(faster, key=lambda one: one.speedup.log)
    if steps is not None:
        best = min(faster, key=lambda one: one.total_s(steps) or math.inf)
    others = [one for one in left if one is not best]
    slower = above([_apart(one, best) for one in others])
    quicker = above([_apart(best, one) for one in others]) if steps is not None else [False] * len(others)
    equals = [one for one, less, more in zip(others, slower, quicker, strict=True) if not less and not more]
    chosen, why = (best, "") if steps is not None else _cheapest([best, *(one for one in equals if one in faster)])
    tied = tuple(one.name for one in (best, *equals) if one is not chosen and _as_long(one, chosen, steps))
    reason = _reason(chosen, tied, why, steps, _beaten(choice, left)) + _beside(chosen, choice)
    return replace(choice, recommended=chosen.name, chosen=chosen, tied=tied, reason=reason)


def _as_long(one: Candidate, chosen: Candidate, steps: int | None) -> bool:
    """Whether a job of so many steps takes about as long, compiling included; without steps nothing is asked."""
    total_s, chosen_s = one.total_s(steps), chosen.total_s(steps)
    return total_s is None or chosen_s is None or total_s <= chosen_s * (1 + NOISE)


def _apart(one: Candidate, other: Candidate) -> Estimate:
    """Log of how many times as long a step takes in `one` as in `other`."""
    return difference(one.step, other.step)


def _cheapest(equals: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Of equally fast modes the one that compiles fastest, else uses least memory, else is mildest; and why."""
    if len(equals) == 1:
        return equals[0], ""
    times_s = [one.compile_s for one in equals if one.compile_s is not None]
    quick = [one for one in equals if one.compile_s is not None and one.compile_s <= min(times_s) * (1 + ALIKE)]
    if len(quick) == 1:
        return quick[0], "compiles fastest"
    quick = quick or list(equals)
    peaks = [one.entry.result.readings.get("compiled_peak_memory_bytes") or math.inf for one in quick]
    small = [one for one, peak in zip(quick, peaks, strict=True) if peak <= min(peaks) * (1 + MEMORY_ALIKE)]
    if len(small) == 1 and all(map(math.isfinite, peaks)):
        return small[0], "needs the least memory"
    return min(quick, key=_mildness), "is the mildest"


def _mildness(one: Candidate) -> tuple[int, str]:
    mode = one.entry.record.trial.mode
    return MODES.index(mode) if mode in MODES else len(MODES), one.name


def _beaten(choice: Choice, left: Sequence[Candidate]) -> str:
    """What else there was to choose from."""
    if len(left) > 1:
        return " and every other mode"
    return "; every other mode is ruled out" if len(choice.entries) > 1 else "; no other mode was tried"


def _reason(chosen: Candidate, tied: Sequence[str], why: str, steps: int | None, beaten: str) -> str:
    times = _times(chosen)
    if steps is not None:
        return f"{times}, and the least total time for {steps:,} steps, compiling included"
    if tied:
        why = f"and it {why}" if why else f"but it alone is faster than eager {_beyond_noise(chosen)}"
        return f"{times}; {shortened(tied)} cannot be told apart from it, {why}"
    return f"{times}, faster than eager{beaten}"


def _beyond_noise(one: Candidate) -> str:
    return "beyond noise" if one.speedup.variance is not None else f"by more than {100 * NOISE:.0f} %"


def _times(one: Candidate) -> str:
    return f"{one.speedup.ratio:.2f} times eager's speed"


def _beside(chosen: Candidate, choice: Choice) -> str:
    """What makes a choice less sure than it looks."""
    limits = choice.limits
    said = f"; {EAGER_MOVED}" if disagree(choice.entries) else ""
    if limits.steps is not None and "compile_contended" in chosen.entry.flags:
        said += "; its compile time is an upper bound"
    doubts = [flag for flag in DOUBTS if flag in chosen.entry.flags]
    said += f"; flagged {', '.join(doubts)}" if doubts else ""
    known = limits.memory_gib is None or chosen.entry.result.readings.get("compiled_peak_memory_bytes") is not None
    return said + ("" if known else "; how much memory it needs is not known")
