"""Decide which mode a model should use: `choose` takes one of several trials of one eager step, and says why.

A mode whose speedup nobody knows is not recommended: doubts of several causes meet in it, or its interval spans a
factor of 2. "Stay eager" is said where the modes were tried that could help. Of a user's own script the whole loop
decides, with its loader, since that is what its user waits for.

Where the eager step times of these trials agree, compiled step times are compared with all of them together, and with
each other. Where they do not, each mode has its paired speedup, which is over the eager arm of its own trial, and modes
are compared by these. Differences of mean logs are tested by Welch's t over processes (over draws where there are
three), p values adjusted by Holm's rule for the number of modes. A pair of trials in which one has no interval is not
tested: a difference then counts from `NOISE` on, or from `HOST_NOISE` on where an arm waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.analysis.derive import break_even_steps
from sweeper.analysis.flags import DOUBTS
from sweeper.analysis.stats import CONFIDENCE, Estimate, difference, holm, p_value, pool_estimates
from sweeper.core.backends import CONTROLS
from sweeper.core.record import ARMS
from sweeper.core.trial import Trial
from sweeper.loading.cross_trial import disagree
from sweeper.loading.entries import Entry
from sweeper.report.formatting import rank_mode, shorten_names

STAY = "stay eager"
NOT_KNOWN = "not known"
# The doubts that say that the machine moved the figure, by cause. One cause moves it within a margin; two of them
# together gave a speedup of 7 on a loaded machine.
CAUSES_OF_DOUBT = (
    frozenset({"host_bound", "unsteady", "eager_moved"}),
    frozenset({"host_busy", "shared_gpu"}),
    frozenset({"clock_mismatch", "throttled"}),
    frozenset({"recompiled", "several_artifacts", "unequal_settings"}),
)
MAX_SPAN = 2.0  # upper / lower end of an interval: beyond it the figure says little
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of Inductor, with CUDA graphs
WITHOUT_GRAPHS = ("default", "max-autotune-no-cudagraphs")
EAGER_MOVED = "eager step times of these trials do not agree, so each mode is compared with its own eager step"
# Step times of a single process repeat within 1.3 % where the device does not wait for the host, on H200s
# (docs/results/h200-scheduling.md); other machines get some room.
NOISE = 0.05
# Where it waits, the same trial twice gave wall speedups of 3.55 and 4.04 (mobilenet_v2, 14 % apart,
# docs/results/h200-repeatability.md), and of 1.88 and 2.56 (resnet50, 36 % apart, docs/results/h200-scheduling.md).
HOST_NOISE = 0.36
ALIKE = 0.10  # compile times that lie nearer together do not decide between modes that are equally fast
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
class Times:
    """What decides of a trial: its step, or of a script its whole loop. Seconds are wall seconds per step."""

    eager: Estimate  # of log seconds
    compiled: Estimate  # of log seconds
    speedup: Estimate
    compiled_s: float
    low: float | None = None  # ends of the interval of the speedup
    high: float | None = None
    range_of_processes: tuple[float, float] | None = None  # of the speedup; None with a single process
    of_loop: bool = False

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval, or of the range of the processes; None where neither is known."""
        return self.range_of_processes if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Candidate:
    """A mode whose result is right. Seconds are wall seconds.

    `eager` is the step that its speedup is over: of all trials, or of its own trial where they do not agree.
    """

    entry: Entry
    times: Times
    eager: Estimate  # of log seconds
    eager_waits: bool  # whether this eager step waits for the host
    speedup: Estimate
    pace: Estimate  # what modes are compared by: steps per second, or with `is_paired` the speedup
    is_paired: bool = False  # whether the eager step is that of its own trial, since those of all do not agree

    @property
    def name(self) -> str:
        return name_mode(self.entry)

    @property
    def compile_s(self) -> float | None:
        """Seconds of compiling with an empty cache."""
        return self.entry.result.readings.get("compile_cold_s")

    @property
    def compile_warm_s(self) -> float | None:
        """Seconds of compiling with the cache of an earlier process."""
        return self.entry.result.readings.get("compile_warm_s")

    def break_even(self, compile_s: float | None) -> float | None:
        """Return the steps of its own trial after which compiling has paid; None: never, or not known."""
        eager_s = self.times.eager.ratio
        return break_even_steps(compile_s, eager_s, eager_s / self.own_speedup)

    @property
    def peak_bytes(self) -> float | None:
        return self.entry.result.readings.get("compiled_peak_memory_bytes")

    @property
    def waits(self) -> bool:
        """Whether its compiled step waits for the host."""
        return self.entry.result.host_bound_arms in ("compiled", "both")

    @property
    def margin(self) -> float:
        """The share by which it must be faster than eager where no test is possible."""
        return HOST_NOISE if self.waits or self.eager_waits else NOISE

    @property
    def unknown(self) -> str:
        """Say why nobody knows its speedup; empty where it is known."""
        low, high = self.times.ends or (1.0, 1.0)
        if high / low >= MAX_SPAN:
            return f"its speedup lies anywhere from {low:.2f} to {high:.2f}"
        step = self.entry.result.speedup
        if self.times.of_loop and step is not None and step <= 1 < self.own_speedup:
            return f"its steps gain nothing ({step:.2f})"
        found = [sorted(cause.intersection(self.entry.flags)) for cause in CAUSES_OF_DOUBT]
        meeting = [flag for flags in found for flag in flags]
        return f"doubts meet: {', '.join(sorted(meeting))}" if sum(map(bool, found)) > 1 else ""

    @property
    def may_pay(self) -> bool:
        """Whether nobody knows its speedup, and it may lie above eager's."""
        return bool(self.unknown) and (self.times.ends is None or self.times.ends[1] > 1 + NOISE)

    @property
    def gains_from_graphs(self) -> bool:
        """Whether its compiled step would be faster than eager if the device never waited for the host."""
        speedup, waits = self.entry.result.speedup, self.entry.result.compiled_waits_fraction
        return speedup is None or waits is None or speedup > (1 + NOISE) * (1 - waits)

    @property
    def described_speedup(self) -> str:
        return f"{self.own_speedup:.2f} times eager's speed{' in its loop' if self.times.of_loop else ''}"

    @property
    def own_speedup(self) -> float:
        """The speedup that people see: over the eager step of its own trial, as in every other table."""
        return self.times.speedup.ratio

    @property
    def described_margin(self) -> str:
        if self.speedup.variance is not None:
            return "beyond noise"
        why = ", as a step waits for the host" if self.margin == HOST_NOISE else ""
        return f"by more than {100 * self.margin:.0f} %{why}"

    def total_s(self, steps: int | None) -> float | None:
        """Seconds of a job of `steps` steps, compiling included."""
        return None if steps is None or self.compile_s is None else self.compile_s + steps * self.times.compiled_s

    def total_share(self, steps: int) -> float:
        """The same as a share of these steps in eager, which compares modes whose eager steps do not agree."""
        return (self.total_s(steps) or math.inf) / (steps * self.eager.ratio)


@dataclass(frozen=True)
class Choice:
    """What to use, None where nothing could be measured at all, and why."""

    entries: tuple[Entry, ...]
    limits: Limits
    batch_size: int | None  # None for a user's own script
    recommended: str | None = STAY
    reason: str = ""
    chosen: Candidate | None = None
    certainty: str | None = None  # tested, single_process or untested (host noise); None: no figures
    tied: tuple[str, ...] = ()  # other modes that cannot be told apart from it
    ruled_out: tuple[str, ...] = ()  # `mode: why`
    not_tried: tuple[str, ...] = ()  # modes that could help where no mode that was tried does
    unknown: tuple[str, ...] = ()  # with `not known`: `mode`, or `mode backend`, whose speedup may lie above eager's
    doubts: tuple[str, ...] = ()  # doubt flags of the chosen mode, or of the one that came nearest to eager
    eager_s: float | None = None  # per step, over all trials; of the chosen one's where they do not agree


def name_mode(entry: Entry) -> str:
    """Return what to type: the mode, or the backend where the backend has no modes."""
    trial = entry.record.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    return str(trial.backend) if trial.mode == "default" else f"{trial.mode} with {trial.backend}"


def choose(entries: Sequence[Entry], limits: Limits) -> Choice:
    """Decide among trials of one model, batch size, workload, precision and variant; `entries` has one or more.

    Without a limit of steps, the length of the training that a script's user named is one.
    """
    planned = next((steps for entry in entries if (steps := entry.record.trial.labels.total_steps)), None)
    limits = replace(limits, steps=limits.steps or planned)
    batch_size = max(
        (entry.record.batch_size for entry in entries if entry.record.status == "ok"),
        default=entries[0].record.trial.batch_size,
    )
    refused = {entry: why for entry in entries if (why := _refuse(entry, batch_size))}
    compared = [entry for entry in entries if entry not in refused]
    eager_peaks = [entry.result.readings.get("eager_peak_memory_bytes") for entry in compared]
    eager_needs = _exceed_memory(min((peak for peak in eager_peaks if peak is not None), default=None), limits)
    times = {entry: found for entry in compared if (found := _find_times(entry))}
    eager = pool_estimates([found.eager for found in times.values()]) if times else None
    if not eager or disagree(compared) or any(found.of_loop for found in times.values()):
        candidates = _compare_with_own(times)
    else:
        candidates = _compare_with_all(times, eager)
    excluded = {one.entry: why for one in candidates if (why := _exceed_limits(one, limits, not eager_needs))}
    left = [one for one in candidates if one.entry not in excluded]
    ruled_out = [f"{name_mode(entry)}: {why}" for entry, why in (refused | excluded).items()]
    choice = Choice(
        tuple(entries),
        limits,
        batch_size if entries[0].record.known_batch_size else None,
        certainty=_rate_certainty(left or candidates),
        ruled_out=(*ruled_out, f"eager: {eager_needs}") if eager_needs else tuple(ruled_out),
        eager_s=eager.ratio if eager else None,
    )
    known = [one for one in left if not one.unknown]
    verdicts = zip(known, find_positive([(one.speedup, one.margin) for one in known]), strict=True)
    # A trial's own interval must lie above 1, too, since the device of another trial may be a slower one.
    faster = [one for one, is_faster in verdicts if is_faster and (one.times.low or math.inf) > 1]
    unknown = [one for one in left if one.may_pay]
    if faster:
        return _choose_fastest(choice, faster, known, unknown)
    nearest = max(left, key=lambda one: one.speedup.log, default=None)
    if eager_needs:
        return _choose_what_fits(choice, nearest)
    if unknown:
        reason = "; ".join(map(_explain_unknown, unknown))
        names = tuple(_name_options(one.entry.record.trial) for one in unknown)
        return replace(choice, recommended=NOT_KNOWN, reason=reason, unknown=names)
    if not left and all(one.own_speedup <= 1 for one in candidates):  # they lose whatever the limits are
        left = candidates
    return _stay_eager(choice, left, candidates)


def find_positive(ratios: Sequence[tuple[Estimate, float]]) -> list[bool]:
    """Say which log ratios lie above 0: tested together where they have a variance, else by the margin beside each."""
    p_values = [p_value(ratio) for ratio, _ in ratios]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [
        ratio.log > math.log1p(margin) if p is None else next(adjusted) < 1 - CONFIDENCE and ratio.log > 0
        for (ratio, margin), p in zip(ratios, p_values, strict=True)
    ]


def _compare(one: Candidate, other: Candidate) -> tuple[Estimate, float]:
    """Return by how much one mode is faster than another, and from which share on that counts without a test."""
    of_eager = one.is_paired and (one.eager_waits or other.eager_waits)
    margin = HOST_NOISE if one.waits or other.waits or of_eager else NOISE
    return difference(one.pace, other.pace), margin


def _refuse(entry: Entry, batch_size: int) -> str | None:
    """Say why a trial has no step time to compare; None where it has one."""
    record = entry.record
    if record.trial.backend in CONTROLS:
        return "a control that compiles nothing"
    if record.status != "ok":
        return record.status
    if record.batch_size < batch_size:
        return f"oom with batch {batch_size}"
    return None if entry.result.compiled_estimate and entry.result.eager_estimate else "no rounds that count"


def _find_times(entry: Entry) -> Times | None:
    """Find what decides of a trial: of a script its loop, where that was timed."""
    result = entry.result
    eager_s, compiled_s = (result.readings.get(f"{arm}_loop_step_s") for arm in ARMS)
    if result.loop_estimate and eager_s and compiled_s:
        eager, compiled = (Estimate(math.log(seconds)) for seconds in (eager_s, compiled_s))
        interval = result.loop_speedup_low, result.loop_speedup_high
        return Times(eager, compiled, result.loop_estimate, compiled_s, *interval, of_loop=True)
    if not (result.eager_estimate and result.compiled_estimate and result.estimate and result.compiled_step_s):
        return None
    estimates = result.eager_estimate, result.compiled_estimate, result.estimate
    low, high = result.speedup_min, result.speedup_max
    range_of_processes = None if low is None or high is None else (low, high)
    return Times(*estimates, result.compiled_step_s, result.speedup_low, result.speedup_high, range_of_processes)


def _compare_with_all(found: Mapping[Entry, Times], eager: Estimate) -> list[Candidate]:
    """Compare each compiled step with the eager step over all trials."""
    eager_waits = any(map(_eager_waits, found))
    return [
        Candidate(entry, times, eager, eager_waits, difference(eager, step), replace(step, log=-step.log))
        for entry, times in found.items()
        for step in [times.compiled]
    ]


def _compare_with_own(found: Mapping[Entry, Times]) -> list[Candidate]:
    """Compare each compiled step with the eager step of its own trial."""
    return [
        Candidate(entry, times, times.eager, _eager_waits(entry), times.speedup, times.speedup, is_paired=True)
        for entry, times in found.items()
    ]


def _eager_waits(entry: Entry) -> bool:
    return entry.result.host_bound_arms in ("eager", "both")


def _exceed_memory(peak_bytes: float | None, limits: Limits) -> str | None:
    """Say how much memory an arm needs where that is beyond the limit."""
    if limits.memory_gib is None or peak_bytes is None or peak_bytes <= limits.memory_gib * GIB:
        return None
    return f"needs {peak_bytes / GIB:.1f} GiB"


def _exceed_limits(one: Candidate, limits: Limits, pays_back: bool) -> str | None:
    """Say which limit a candidate does not keep; without `pays_back` the job cannot run in eager anyway."""
    if needs := _exceed_memory(one.peak_bytes, limits):
        return needs
    if limits.steps is None or not pays_back:
        return None
    if one.compile_s is None:
        return "its compile time is not known"
    if one.total_share(limits.steps) < 1:
        return None
    is_upper_bound = "compile_contended" in one.entry.flags
    return f"{'is not shown to' if is_upper_bound else 'does not'} pay back within {limits.steps:,} steps"


def _rate_certainty(candidates: Sequence[Candidate]) -> str | None:
    if not candidates:
        return None
    if all(one.speedup.variance is not None for one in candidates):
        return "tested"
    return "single_process" if any(one.entry.result.processes == 1 for one in candidates) else "untested"


def _explain_unknown(one: Candidate) -> str:
    return f"{one.name} measured {one.described_speedup}, but {one.unknown}"


def _name_options(trial: Trial) -> str:
    """Name the mode, and the backend where it is not Inductor."""
    return trial.mode if trial.backend in ("inductor", None) else f"{trial.mode} {trial.backend}"


def _choose_fastest(
    choice: Choice, faster: Sequence[Candidate], left: Sequence[Candidate], unknown: Sequence[Candidate]
) -> Choice:
    """Choose the fastest of the modes that are faster than eager, or the mode as fast that costs least.

    Nobody knows how fast the modes in `unknown` are, and they have no say.
    """
    steps = choice.limits.steps
    best = max(faster, key=lambda one: one.speedup.log)
    if steps is not None:
        best = min(faster, key=lambda one: one.total_share(steps))
    others = [one for one in left if one is not best]
    slower = find_positive([_compare(best, one) for one in others])
    quicker = find_positive([_compare(one, best) for one in others]) if steps else [False] * len(others)
    equals = [one for one, less, more in zip(others, slower, quicker, strict=True) if not less and not more]
    # Beside a fastest mode that does not wait for the host, a mode that does wins by nothing but its wide margin.
    rivals = [one for one in equals if one in faster and (best.waits or not one.waits)]
    chosen, why = (best, "") if steps else _choose_cheapest([best, *rivals])
    tied = [one for one in (best, *equals) if one is not chosen and (not steps or _costs_alike(one, chosen, steps))]
    if steps:
        reason = f", and the least total time for {steps:,} steps, compiling included"
    elif tied:
        waiting = [one.name for one in tied if one in faster and one not in (best, *rivals)]
        rest = [one for one in tied if one.name not in waiting]
        parts = {f"and it {why}": [one.name for one in rest]} if why else _explain_why_not_faster(rest)
        parts |= {f"but {'waits' if len(waiting) == 1 else 'wait'} for the host": waiting}
        reason = "".join(
            f"; {shorten_names(names)} cannot be told apart from it, {but}" for but, names in parts.items() if names
        )
    elif len(left) > 1:
        reason = ", faster than eager and every other mode"
    else:
        alone = "every other mode is ruled out" if len(choice.entries) > 1 else "no other mode was tried"
        reason = ", faster than eager" if unknown else f", faster than eager; {alone}"
    reason += "".join(f"; {_explain_unknown(one)}" for one in unknown)
    reason = f"{chosen.described_speedup}{reason}{_list_doubts(chosen, choice)}"
    return _take(choice, chosen, reason, tied)


def _explain_why_not_faster(modes: Sequence[Candidate]) -> dict[str, list[str]]:
    """Say of modes by what they are not faster than eager: their names by the words."""
    found: dict[str, list[str]] = {}
    for one in modes:
        found.setdefault(one.described_margin, []).append(one.name)
    return {
        f"but {'is' if len(names) == 1 else 'are'} not faster than eager {margin}": names
        for margin, names in found.items()
    }


def _take(choice: Choice, chosen: Candidate, reason: str, tied: Sequence[Candidate] = ()) -> Choice:
    names = tuple(one.name for one in tied)
    return replace(
        choice,
        recommended=chosen.name,
        chosen=chosen,
        tied=names,
        reason=reason,
        doubts=_select_doubts(chosen),
        eager_s=chosen.eager.ratio,
    )


def _costs_alike(one: Candidate, chosen: Candidate, steps: int) -> bool:
    return one.total_share(steps) <= chosen.total_share(steps) * (1 + _compare(one, chosen)[1])


def _choose_what_fits(choice: Choice, nearest: Candidate | None) -> Choice:
    """Choose the fastest mode where eager needs too much memory and no mode is faster."""
    if not nearest:
        reason = "neither eager nor a mode that is right fits"
        return replace(choice, recommended="nothing fits", reason=reason, eager_s=None)
    reason = f"{nearest.described_speedup}; eager itself does not fit{_list_doubts(nearest, choice)}"
    return _take(choice, nearest, reason)


def _stay_eager(choice: Choice, left: Sequence[Candidate], candidates: Sequence[Candidate]) -> Choice:
    """Say why no mode is recommended: none in `left` is faster than eager, or none is there, which keeps the limits."""
    if left:
        nearest = max(left, key=lambda one: one.speedup.log)
        choice = replace(choice, doubts=_select_doubts(nearest))
        reason = f"no mode is faster than eager {nearest.described_margin}; nearest is {nearest.name}"
        reason = "; ".join([f"{reason}, {nearest.described_speedup}", *_doubt_speedup(nearest)])
        if not_tried := _list_untried(choice, left):
            names = [one.name for one in left]
            pay = f"{shorten_names(names)} {'does' if len(names) == 1 else 'do'} not pay"
            recommended = f"{pay}; {shorten_names(not_tried)} not tried"
            return replace(choice, recommended=recommended, reason=reason, not_tried=tuple(not_tried))
        return replace(choice, reason=reason)
    if candidates:
        return replace(choice, reason="every mode that is right is beyond the limits given")
    judging = [entry for entry in choice.entries if entry.record.judges_the_compiler]
    if statuses := {entry.record.status for entry in judging if not entry.result.is_void_by_script}:
        return replace(choice, reason=f"no mode gave a right result: {', '.join(sorted(statuses))}")
    statuses = {entry.record.status for entry in choice.entries}
    return replace(choice, recommended=None, reason=f"nothing could be compared: {', '.join(sorted(statuses))}")


def _list_untried(choice: Choice, left: Sequence[Candidate]) -> list[str]:
    """List the modes of Inductor that could help: one without CUDA graphs, and on a GPU one with them.

    Graphs help a step whose device waits for the host, and a trial that does not know that may be one.
    """
    tried = [one.record.trial for one in choice.entries if one.record.judges_the_compiler]
    inductor = [trial for trial in tried if trial.backend == "inductor"]
    # On a CPU the modes with graphs have none.
    if not any(
        trial.mode in WITHOUT_GRAPHS or (trial.device == "cpu" and trial.mode in GRAPH_MODES) for trial in inductor
    ):
        return ["default"]
    if any(trial.mode in GRAPH_MODES or trial.device == "cpu" or _asks_for_graphs(trial) for trial in inductor):
        return []
    of_inductor = [one for one in left if one.entry.record.trial.backend == "inductor"]
    return ["reduce-overhead"] if any(one.gains_from_graphs for one in of_inductor) else []


def _asks_for_graphs(trial: Trial) -> bool:
    return bool(trial.compile.options.get("triton.cudagraphs"))


def _choose_cheapest(equals: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Choose the mode that compiles fastest, else uses least memory, else is mildest, and say which of these it is."""
    if len(equals) == 1:
        return equals[0], ""
    times_s = [one.compile_s for one in equals if one.compile_s is not None]
    quick = [one for one in equals if one.compile_s is not None and one.compile_s <= min(times_s) * (1 + ALIKE)]
    if len(quick) == 1:
        return quick[0], "compiles fastest"
    quick = quick or list(equals)
    peaks = [one.peak_bytes or math.inf for one in quick]
    small = [one for one, peak in zip(quick, peaks, strict=True) if peak <= min(peaks) * (1 + MEMORY_ALIKE)]
    if len(small) == 1 and all(map(math.isfinite, peaks)):
        return small[0], "needs the least memory"
    return min(quick, key=lambda one: (rank_mode(one.entry.record.trial.mode), one.name)), "is the mildest"


def _list_doubts(chosen: Candidate, choice: Choice) -> str:
    """List what makes a choice less sure than it looks."""
    limits = choice.limits
    doubts = _doubt_speedup(chosen)
    if limits.steps and "compile_contended" in chosen.entry.flags:
        doubts.append("its compile time is an upper bound")
    if limits.memory_gib and chosen.peak_bytes is None:
        doubts.append("how much memory it needs is not known")
    return "".join(f"; {doubt}" for doubt in doubts)


def _doubt_speedup(one: Candidate) -> list[str]:
    """List what makes the speedup of a mode less sure than it looks."""
    named = _select_doubts(one)
    return [EAGER_MOVED] * (one.is_paired and not one.times.of_loop) + [f"flagged {', '.join(named)}"] * bool(named)


def _select_doubts(one: Candidate) -> tuple[str, ...]:
    """Select the doubt flags of a mode; with its own eager step, that others moved does not matter."""
    return tuple(flag for flag in one.entry.flags if flag in DOUBTS and not (flag == "eager_moved" and one.is_paired))
