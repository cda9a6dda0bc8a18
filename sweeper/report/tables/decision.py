"""Decide which mode a model should use: `choose` takes one of several trials of one eager step, and
says why.

A mode whose speedup nobody knows is not recommended: doubts of several causes meet in it, or its
interval spans a factor of 2. "Stay eager" is said where the modes were tried that could help. Of a
user's own script the whole loop decides.

Where the eager step times of these trials agree, compiled step times are compared with all of them
together, and with each other. Where they do not, each mode has its paired speedup, which is over
the eager arm of its own trial, and modes are compared by these. Differences of mean logs are tested
by Welch's t over processes (over draws where there are three), p values adjusted by Holm's rule for
the number of modes. A pair of trials in which one has no interval is not tested: a difference then
counts from `NOISE` on, or from `HOST_NOISE` on where an arm waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.analysis.stats import CONFIDENCE, Estimate, difference, holm, p_value, pool_estimates
from sweeper.core.backends import CONTROLS
from sweeper.core.trial import Trial
from sweeper.loading.cross_trial import disagree
from sweeper.loading.entries import Entry
from sweeper.report.formatting import rank_mode, shorten_names
from sweeper.report.tables.candidates import (
    HOST_NOISE,
    NOISE,
    Candidate,
    compare_with_all,
    compare_with_own,
    find_times,
    name_mode,
)

EAGER_MOVED = (
    "eager step times of these trials do not agree, so each mode is compared with its "
    "own eager step"
)
STAY = "stay eager"
NOT_KNOWN = "not known"
NOTHING_FITS = "nothing fits"
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of Inductor, with CUDA graphs
WITHOUT_GRAPHS = ("default", "max-autotune-no-cudagraphs")
# compile times that lie nearer together do not decide between modes that are equally fast
ALIKE = 0.10
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
        parts = (
            f"{self.steps:,} steps" if self.steps else "",
            f"{self.memory_gib:g} GiB" if self.memory_gib else "",
        )
        return ", ".join(part for part in parts if part)


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Choice:
    """What to use, None where nothing could be measured at all, and why."""

    entries: tuple[Entry, ...]
    limits: Limits
    batch_size: int | None  # None for a user's own script
    recommended: str | None = STAY
    reason: str = ""
    chosen: Candidate | None = None
    # the trial that is recommended, is not known, or came nearest to eager
    rests_on: Entry | None = None
    # tested, single_process or untested (host noise); None: no figures
    certainty: str | None = None
    tied: tuple[str, ...] = ()  # other modes that cannot be told apart from it
    ruled_out: tuple[str, ...] = ()  # `mode: why`
    not_tried: tuple[str, ...] = ()  # modes that could help where no mode that was tried does
    # with `not known`: `mode`, or `mode backend`, whose speedup may lie above eager's
    unknown: tuple[str, ...] = ()
    # doubt flags of the chosen mode, or of the one that came nearest to eager
    doubts: tuple[str, ...] = ()
    # per step, over all trials; of the chosen one's where they do not agree
    eager_s: float | None = None
    eager_agrees: bool = True  # whether the eager step times of the trials do


def choose(entries: Sequence[Entry], limits: Limits) -> Choice:
    """Decide among trials of one model, batch size, workload, precision and variant; `entries` has
    one or more.

    Without a limit of steps, the length of the training that a script's user named is one.
    """
    planned = next(
        (steps for entry in entries if (steps := entry.record.trial.labels.total_steps)), None
    )
    limits = replace(limits, steps=limits.steps or planned)
    batch_size = max(
        (entry.record.batch_size for entry in entries if entry.record.status == "ok"),
        default=entries[0].record.trial.batch_size,
    )
    refused = {entry: why for entry in entries if (why := _refuse(entry, batch_size))}
    times = {
        entry: found for entry in entries if entry not in refused and (found := find_times(entry))
    }
    if of_loop := any(found.of_loop for found in times.values()):
        refused |= {
            entry: "its loop was not timed" for entry, found in times.items() if not found.of_loop
        }
    compared = [entry for entry in entries if entry not in refused]
    eager_peaks = [entry.result.readings.get("eager_peak_memory_bytes") for entry in compared]
    eager_needs = _exceed_memory(
        min((peak for peak in eager_peaks if peak is not None), default=None), limits
    )
    times = {entry: times[entry] for entry in compared}
    eager = pool_estimates([found.eager for found in times.values()]) if times else None
    agree = not disagree(
        [found.eager.ratio for found in times.values()], entries[0].record.trial.device
    )
    pooled = eager if agree and not of_loop else None
    candidates = compare_with_all(times, pooled) if pooled else compare_with_own(times)
    excluded = {
        one: why for one in candidates if (why := _exceed_limits(one, limits, not eager_needs))
    }
    left = [one for one in candidates if one not in excluded]
    ruled_out = [f"{name_mode(entry)}: {why}" for entry, why in refused.items()]
    ruled_out += [f"{one.name}: {why}" for one, why in excluded.items()]
    choice = Choice(
        tuple(entries),
        limits,
        batch_size if entries[0].record.known_batch_size else None,
        certainty=_rate_certainty(left or candidates),
        ruled_out=(*ruled_out, f"eager: {eager_needs}") if eager_needs else tuple(ruled_out),
        eager_s=eager.ratio if eager else None,
        eager_agrees=agree,
    )
    known = [one for one in left if not one.unknown]
    verdicts = zip(known, find_positive([(one.speedup, one.margin) for one in known]), strict=True)
    # A trial's own interval must lie above 1, too, since the device of another trial may be a
    # slower one.
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
        rests_on = max(unknown, key=lambda one: one.speedup.log).entry
        return replace(
            choice, recommended=NOT_KNOWN, reason=reason, unknown=names, rests_on=rests_on
        )
    # they lose whatever the limits are
    if not left and all(one.own_speedup <= 1 for one in candidates):
        left = candidates
    if left:
        gains = any(find_positive([(one.speedup, one.margin) for one in excluded]))
        return _stay_eager(choice, left, "no mode within the limits" if gains else "no mode")
    if candidates:
        rests_on = max(candidates, key=lambda one: one.speedup.log).entry
        return replace(
            choice, reason="every mode that is right is beyond the limits given", rests_on=rests_on
        )
    return _explain_nothing(choice, refused)


def find_positive(ratios: Sequence[tuple[Estimate, float]]) -> list[bool]:
    """Say which log ratios lie above 0: tested together where they have a variance, else by the
    margin beside each.
    """
    p_values = [p_value(ratio) for ratio, _ in ratios]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [
        ratio.log > math.log1p(margin)
        if p is None
        else next(adjusted) < 1 - CONFIDENCE and ratio.log > 0
        for (ratio, margin), p in zip(ratios, p_values, strict=True)
    ]


def _compare(one: Candidate, other: Candidate) -> tuple[Estimate, float]:
    """Return by how much one mode is faster than another, and from which share on that counts
    without a test.
    """
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
    return (
        None
        if entry.result.compiled_estimate and entry.result.eager_estimate
        else "no rounds that count"
    )


def _exceed_memory(peak_bytes: float | None, limits: Limits) -> str | None:
    """Say how much memory an arm needs where that is beyond the limit."""
    if limits.memory_gib is None or peak_bytes is None or peak_bytes <= limits.memory_gib * GIB:
        return None
    return f"needs {peak_bytes / GIB:.1f} GiB"


def _exceed_limits(one: Candidate, limits: Limits, pays_back: bool) -> str | None:
    """Say which limit a candidate does not keep; without `pays_back` the job cannot run in eager
    anyway.
    """
    if needs := _exceed_memory(one.peak_bytes, limits):
        return needs
    if limits.steps is None or not pays_back:
        return None
    if one.compile_s is None:
        return "its compile time is not known"
    if one.total_share(limits.steps) < 1:
        return None
    is_upper_bound = "compile_contended" in one.entry.flags
    return (
        f"{'is not shown to' if is_upper_bound else 'does not'} pay back within "
        f"{limits.steps:,} steps"
    )


def _rate_certainty(candidates: Sequence[Candidate]) -> str | None:
    if not candidates:
        return None
    if all(one.speedup.variance is not None for one in candidates):
        return "tested"
    return (
        "single_process"
        if any(one.entry.result.processes == 1 for one in candidates)
        else "untested"
    )


def _explain_unknown(one: Candidate) -> str:
    return f"{one.name} measured {one.described_speedup}, but {one.unknown}"


def _name_options(trial: Trial) -> str:
    """Name the mode, and the backend where it is not Inductor."""
    return trial.mode if trial.backend in ("inductor", None) else f"{trial.mode} {trial.backend}"


def _choose_fastest(
    choice: Choice,
    faster: Sequence[Candidate],
    left: Sequence[Candidate],
    unknown: Sequence[Candidate],
) -> Choice:
    """Choose the fastest of the modes that are faster than eager, or the mode as fast that costs
    least.

    Nobody knows how fast the modes in `unknown` are, and they have no say.
    """
    steps = choice.limits.steps
    best = max(faster, key=lambda one: one.speedup.log)
    if steps is not None:
        best = min(faster, key=lambda one: one.total_share(steps))
    others = [one for one in left if one is not best]
    slower = find_positive([_compare(best, one) for one in others])
    quicker = (
        find_positive([_compare(one, best) for one in others]) if steps else [False] * len(others)
    )
    equals = [
        one
        for one, less, more in zip(others, slower, quicker, strict=True)
        if not less and not more
    ]
    # Beside a fastest mode that does not wait for the host, a mode that does wins by nothing but
    # its wide margin.
    rivals = [one for one in equals if one in faster and (best.waits or not one.waits)]
    chosen, why = (
        (best, "")
        if steps
        else _choose_cheapest(
            _leave_out_slower([best, *rivals], [best, *filter(faster.__contains__, equals)])
        )
    )
    equals = [one for one in (best, *equals) if one is not chosen]
    if steps:
        tied = [one for one in equals if _costs_alike(one, chosen, steps)]
    else:
        less = find_positive([_compare(chosen, one) for one in equals])
        tied = [one for one, is_slower in zip(equals, less, strict=True) if not is_slower]
    if steps:
        reason = f", and the least total time for {steps:,} steps, compiling included"
    elif tied:
        waiting = [one.name for one in tied if one in faster and one not in (best, *rivals)]
        rest = [one for one in tied if one.name not in waiting]
        parts = (
            {f"and it {why}": [one.name for one in rest]} if why else _explain_why_not_faster(rest)
        )
        parts |= {f"but {'waits' if len(waiting) == 1 else 'wait'} for the host": waiting}
        reason = "".join(
            f"; {shorten_names(names)} cannot be told apart from it, {but}"
            for but, names in parts.items()
            if names
        )
    elif len(left) > 1:
        reason = ", faster than eager and every other mode"
    else:
        alone = (
            "every other mode is ruled out"
            if len(choice.entries) > 1
            else "no other mode was tried"
        )
        reason = ", faster than eager" if unknown else f", faster than eager; {alone}"
    reason += "".join(f"; {_explain_unknown(one)}" for one in unknown)
    reason = f"{chosen.described_speedup}{reason}{_list_doubts(chosen, choice)}"
    return _take(choice, chosen, reason, tied)


def _leave_out_slower(modes: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Leave out the modes that one of the others is faster than, though the fastest of all, a noisy
    one, is not.
    """
    return [
        one
        for one in modes
        if not any(find_positive([_compare(other, one) for other in others if other is not one]))
    ]


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
        rests_on=chosen.entry,
        tied=names,
        reason=reason,
        doubts=chosen.doubts,
        eager_s=chosen.eager.ratio,
    )


def _costs_alike(one: Candidate, chosen: Candidate, steps: int) -> bool:
    return one.total_share(steps) <= chosen.total_share(steps) * (1 + _compare(one, chosen)[1])


def _choose_what_fits(choice: Choice, nearest: Candidate | None) -> Choice:
    """Choose the fastest mode where eager needs too much memory and no mode is faster."""
    if not nearest:
        reason = "neither eager nor a mode that is right fits"
        return replace(choice, recommended=NOTHING_FITS, reason=reason, eager_s=None)
    reason = (
        f"{nearest.described_speedup}; eager itself does not fit{_list_doubts(nearest, choice)}"
    )
    return _take(choice, nearest, reason)


def _stay_eager(choice: Choice, left: Sequence[Candidate], which: str) -> Choice:
    """Say why no mode is recommended: none in `left`, which are those that `which` says, is faster
    than eager.
    """
    nearest = max(left, key=lambda one: one.own_speedup)
    reason = f"{which} is faster than eager {nearest.described_margin}; nearest is {nearest.name}"
    reason = "; ".join([f"{reason}, {nearest.described_speedup}", *_doubt_speedup(nearest, choice)])
    choice = replace(choice, reason=reason, doubts=nearest.doubts, rests_on=nearest.entry)
    if not_tried := _list_untried(choice, left):
        names = [one.name for one in left]
        pay = f"{shorten_names(names)} {'does' if len(names) == 1 else 'do'} not pay"
        recommended = f"{pay}; {shorten_names(not_tried)} not tried"
        return replace(choice, recommended=recommended, not_tried=tuple(not_tried))
    return choice


def _explain_nothing(choice: Choice, refused: Mapping[Entry, str]) -> Choice:
    """Say what became of trials of which none can be compared; if the compiler is to blame, the
    user stays eager.
    """
    judged = (
        entry
        for entry in refused
        if entry.record.judges_the_compiler and not entry.result.is_void_by_script
    )
    if failed := {status for entry in judged if (status := entry.record.status) != "ok"}:
        return replace(choice, reason=f"no mode gave a right result: {', '.join(sorted(failed))}")
    why = ", ".join(sorted(set(refused.values())))
    return replace(choice, recommended=None, reason=f"nothing could be compared: {why}")


def _list_untried(choice: Choice, left: Sequence[Candidate]) -> list[str]:
    """List the modes of Inductor that could help: one without CUDA graphs, and on a GPU one with
    them.

    Graphs help a step whose device waits for the host, and a trial that does not know that may be
    one.
    """
    tried = [one.record.trial for one in choice.entries if one.record.judges_the_compiler]
    inductor = [trial for trial in tried if trial.backend == "inductor"]
    # On a CPU the modes with graphs have none.
    if not any(
        trial.mode in WITHOUT_GRAPHS or (trial.device == "cpu" and trial.mode in GRAPH_MODES)
        for trial in inductor
    ):
        return ["default"]
    if any(
        trial.mode in GRAPH_MODES or trial.device == "cpu" or _asks_for_graphs(trial)
        for trial in inductor
    ):
        return []
    of_inductor = [one for one in left if one.entry.record.trial.backend == "inductor"]
    return ["reduce-overhead"] if any(one.gains_from_graphs for one in of_inductor) else []


def _asks_for_graphs(trial: Trial) -> bool:
    return bool(trial.compile.options.get("triton.cudagraphs"))


def _choose_cheapest(equals: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Choose the mode that compiles fastest, else uses least memory, else is mildest, and say which
    of these it is.
    """
    if len(equals) == 1:
        return equals[0], ""
    times_s = [one.compile_s for one in equals if one.compile_s is not None]
    quick = [
        one
        for one in equals
        if one.compile_s is not None and one.compile_s <= min(times_s) * (1 + ALIKE)
    ]
    if len(quick) == 1:
        return quick[0], "compiles fastest"
    quick = quick or list(equals)
    peaks = [one.peak_bytes or math.inf for one in quick]
    small = [
        one
        for one, peak in zip(quick, peaks, strict=True)
        if peak <= min(peaks) * (1 + MEMORY_ALIKE)
    ]
    if len(small) == 1 and all(map(math.isfinite, peaks)):
        return small[0], "needs the least memory"
    return min(
        quick, key=lambda one: (rank_mode(one.entry.record.trial.mode), one.name)
    ), "is the mildest"


def _list_doubts(chosen: Candidate, choice: Choice) -> str:
    """List what makes a choice less sure than it looks."""
    limits = choice.limits
    doubts = _doubt_speedup(chosen, choice)
    if limits.steps and "compile_contended" in chosen.entry.flags:
        doubts.append("its compile time is an upper bound")
    if limits.memory_gib and chosen.peak_bytes is None:
        doubts.append("how much memory it needs is not known")
    return "".join(f"; {doubt}" for doubt in doubts)


def _doubt_speedup(one: Candidate, choice: Choice) -> list[str]:
    """List what makes the speedup of a mode less sure than it looks."""
    return [EAGER_MOVED] * (not choice.eager_agrees) + [f"flagged {', '.join(one.doubts)}"] * bool(
        one.doubts
    )
