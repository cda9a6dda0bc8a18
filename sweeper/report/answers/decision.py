"""Decide which mode a model should use: `choose` takes one of several trials of one eager step, and
says why.

A mode is not recommended where its speedup is not known: its interval spans a factor of 2, or it
has doubts of several causes. "Stay eager" needs the modes that could help to have been tried. Of a
user's own script the whole loop decides.

Where the eager step times of these trials agree, compiled step times are compared with all of them
together, and with each other. Where they do not, each mode has its paired speedup, which is over
the eager arm of its own trial, and modes are compared by these. Differences of mean logs are tested
by Welch's t over processes (over draws where there are three), p values adjusted by Holm's rule for
the number of modes. A pair of trials in which one has no interval is not tested: a difference then
counts from `NOISE` on, or from `HOST_NOISE` on where an arm waits for the host.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.analysis.stats import CONFIDENCE, Estimate, difference, holm, p_value, pool_estimates
from sweeper.core.backends import CONTROLS
from sweeper.core.trial import Trial
from sweeper.loading.cross_trial import disagree
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import join, prefix, shorten_names

from .candidates import (
    HOST_NOISE,
    NOISE,
    Candidate,
    ModeOption,
    Times,
    compare_with_all,
    compare_with_own,
    find_option,
    find_times,
    name_mode,
)
from .trials import rank_mode

EAGER_MOVED = (
    "eager step times of these trials do not agree, so each mode is compared with its own eager "
    "step"
)
STAY = "stay eager"
NOT_KNOWN = "not known"
NOTHING_FITS = "nothing fits"
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of Inductor, with CUDA graphs
WITHOUT_GRAPHS = ("default", "max-autotune-no-cudagraphs")
# Compile times that lie nearer together do not decide between modes that are equally fast.
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
        steps = f"{self.steps:,} steps" if self.steps else ""
        memory = f"{self.memory_gib:g} GiB" if self.memory_gib else ""
        return join((steps, memory), ", ")


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
    outcomes: tuple[str, ...] = ()  # where nothing could be compared: what the trials came to
    not_tried: tuple[str, ...] = ()  # modes that could help where no mode that was tried does
    # with `not known`: the modes whose speedup may lie above eager's
    unknown: tuple[ModeOption, ...] = ()
    # doubt flags of the chosen mode, or of the one that came nearest to eager
    doubts: tuple[str, ...] = ()
    doubts_eager: bool = False  # whether the reason says that eager step times do not agree
    # per step, over all trials; of the chosen one's where they do not agree
    eager_s: float | None = None
    eager_agrees: bool = True  # whether the eager step times of the trials do

    @property
    def trial(self) -> Trial:
        """A trial of the model, for what all of them have in common."""
        return self.entries[0].trial

    @property
    def answer(self) -> str:
        """The answer in short: a mode, `stay eager`, `not known`, or `try MODE`."""
        if self.not_tried:
            return f"try {' and '.join(self.not_tried)}"
        return self.recommended or ""

    @property
    def is_open(self) -> bool:
        """Whether another run may change the answer from no to yes."""
        return self.recommended == NOT_KNOWN or bool(self.not_tried)

    @property
    def speedup(self) -> float | None:
        if self.chosen:
            return self.chosen.own_speedup
        return None

    @property
    def gain(self) -> float:
        """The speedup of the mode that is recommended; 0 without one."""
        return self.speedup or 0.0

    @property
    def total_eager_s(self) -> float | None:
        """Wall seconds of the job in eager."""
        if not self.limits.steps or self.eager_s is None:
            return None
        return self.limits.steps * self.eager_s

    @property
    def total_compiled_s(self) -> float | None:
        """Wall seconds of the job in the mode that is recommended, compiling included."""
        if self.chosen:
            return self.chosen.total_s(self.limits.steps)
        return None


def choose_all(entries: Iterable[Entry], limits: Limits = NO_LIMITS) -> list[Choice]:
    """Choose for each model, batch size, workload, precision and variant, in alphabetical order of
    the models.

    Of two records of one mode and backend one that is ok counts, then the later one. mode=eager has
    no say.
    """
    groups: dict[Hashable, dict[tuple[str, str | None], Entry]] = defaultdict(dict)
    for entry in entries:
        trial = entry.trial
        if trial.mode == "eager":
            continue
        axes = trial.model.key, trial.batch_size, trial.workload, entry.variant
        group = groups[*axes, trial.labels.precision, trial.precision]
        other = group.get((trial.mode, trial.backend))
        if other is None or not other.is_ok or entry.is_ok:
            group[trial.mode, trial.backend] = entry
    choices = [choose(list(group.values()), limits) for group in groups.values()]
    return sorted(choices, key=_order)


def _order(choice: Choice) -> tuple[str, str, int, str, str]:
    labels, variant = choice.trial.labels, choice.entries[0].variant
    batch_size = choice.batch_size or 0
    return labels.model, choice.trial.workload, batch_size, variant, labels.precision


def choose(entries: Sequence[Entry], limits: Limits) -> Choice:
    """Decide among trials of one model, batch size, workload, precision and variant; `entries` has
    one or more.

    Without a limit of steps, the length of the training that a script's user named is one.
    """
    first = entries[0]
    if not limits.steps:
        planned = [entry.trial.labels.total_steps for entry in entries]
        limits = replace(limits, steps=next(filter(None, planned), None))
    # The largest batch that ran, else the one that was asked for.
    ran = [entry.record.batch_size for entry in entries if entry.is_ok]
    batch_size = max(ran, default=first.trial.batch_size)
    times, refused = _find_comparable(entries, batch_size)
    peaks_bytes = [entry.result.eager_peak_memory_bytes for entry in times]
    eager_needs = _exceed_memory(min(filter(None, peaks_bytes), default=None), limits)
    eager_steps = [found.eager for found in times.values()]
    eager = pool_estimates(eager_steps) if times else None
    agrees = not disagree([step.ratio for step in eager_steps], first.trial.device)
    of_loop = any(found.of_loop for found in times.values())
    if eager and agrees and not of_loop:
        candidates = compare_with_all(times, eager)
    else:
        candidates = compare_with_own(times)
    ruled_out = [f"{name_mode(entry)}: {why}" for entry, why in refused.items()]
    left = []
    for one in candidates:
        why = _exceed_limits(one, limits, pays_back=not eager_needs)
        if why:
            ruled_out.append(f"{one.name}: {why}")
        else:
            left.append(one)
    if eager_needs:
        ruled_out.append(f"eager: {eager_needs}")
    choice = Choice(
        tuple(entries),
        limits,
        batch_size if first.record.known_batch_size else None,
        certainty=_rate_certainty(left or candidates),
        ruled_out=tuple(ruled_out),
        eager_s=eager.ratio if eager else None,
        eager_agrees=agrees,
    )
    if not candidates and not eager_needs:
        return _explain_nothing(choice, refused)
    return _decide(choice, candidates, left, fits=not eager_needs)


def _decide(
    choice: Choice, candidates: Sequence[Candidate], left: Sequence[Candidate], fits: bool
) -> Choice:
    """Decide among candidates, of which those in `left` keep the limits; `fits`: so does eager."""
    known = [one for one in left if not one.unknown]
    # A trial's own interval must lie above 1, too, since the device of another trial may be a
    # slower one.
    faster = [one for one in _select_gaining(known) if (one.times.low or math.inf) > 1]
    unknown = [one for one in left if one.may_pay]
    if faster:
        return _choose_fastest(choice, faster, known, unknown)
    if not fits and not left:
        reason = "neither eager nor a mode that is right fits"
        return replace(choice, recommended=NOTHING_FITS, reason=reason, eager_s=None)
    if not fits:
        nearest = max(left, key=_rank_gain)
        return _take(choice, nearest, f"{nearest.described_speedup}; eager itself does not fit")
    if unknown:
        return replace(
            choice,
            recommended=NOT_KNOWN,
            reason=join(map(_explain_unknown, unknown)),
            unknown=tuple(find_option(one.entry) for one in unknown),
            rests_on=max(unknown, key=_rank_gain).entry,
        )
    gains = _select_gaining(one for one in candidates if one not in left)
    # They lose whatever the limits are.
    if not left and all(one.own_speedup <= 1 for one in candidates):
        left = candidates
    if left:
        return _stay_eager(choice, left, "no mode within the limits" if gains else "no mode")
    return replace(
        choice,
        reason="every mode that is right is beyond the limits given",
        rests_on=max(candidates, key=_rank_gain).entry,
    )


def _rank_gain(one: Candidate) -> float:
    return one.speedup.log


def _find_comparable(
    entries: Sequence[Entry], batch_size: int
) -> tuple[dict[Entry, Times], dict[Entry, str]]:
    """Find the times of the trials that can be compared, and why the others cannot."""
    times: dict[Entry, Times] = {}
    refused: dict[Entry, str] = {}
    for entry in entries:
        result, found = entry.result, find_times(entry)
        if entry.trial.backend in CONTROLS:
            refused[entry] = "a control that compiles nothing"
        elif not entry.is_ok:
            refused[entry] = entry.record.status
        elif entry.record.batch_size < batch_size:
            refused[entry] = f"oom with batch {batch_size}"
        elif not result.compiled_estimate or not result.eager_estimate:
            refused[entry] = "no rounds that count"
        elif found:
            times[entry] = found
    if any(found.of_loop for found in times.values()):
        for entry, found in list(times.items()):
            if not found.of_loop:
                refused[entry] = "its loop was not timed"
                del times[entry]
    return times, refused


def _select_positive(ratios: Mapping[Candidate, tuple[Estimate, float]]) -> list[Candidate]:
    """Select the modes whose log ratio lies above 0: tested together where they have a variance,
    else by the margin beside each.
    """
    p_values = {}
    for one, (ratio, _) in ratios.items():
        p = p_value(ratio)
        if p is not None:
            p_values[one] = p
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    found = []
    for one, (ratio, margin) in ratios.items():
        is_positive = ratio.log > math.log1p(margin)
        if one in adjusted:
            is_positive = adjusted[one] < 1 - CONFIDENCE and ratio.log > 0
        if is_positive:
            found.append(one)
    return found


def _select_gaining(modes: Iterable[Candidate]) -> list[Candidate]:
    """Select the modes that are faster than eager."""
    return _select_positive({one: (one.speedup, one.margin) for one in modes})


def _select_slower(best: Candidate, others: Iterable[Candidate]) -> list[Candidate]:
    """Select the others that `best` is faster than."""
    return _select_positive({one: _compare(best, one) for one in others if one is not best})


def _select_faster(worst: Candidate, others: Iterable[Candidate]) -> list[Candidate]:
    """Select the others that are faster than `worst`."""
    return _select_positive({one: _compare(one, worst) for one in others if one is not worst})


def _compare(one: Candidate, other: Candidate) -> tuple[Estimate, float]:
    """Return by how much one mode is faster than another, and from which share on that counts
    without a test.
    """
    of_eager = one.is_paired and (one.eager_waits or other.eager_waits)
    margin = HOST_NOISE if one.waits or other.waits or of_eager else NOISE
    return difference(one.pace, other.pace), margin


def _exceed_memory(peak_bytes: float | None, limits: Limits) -> str | None:
    """Say how much memory an arm needs where that is beyond the limit."""
    if limits.memory_gib is None or peak_bytes is None or peak_bytes <= limits.memory_gib * GIB:
        return None
    return f"needs {peak_bytes / GIB:.1f} GiB"


def _exceed_limits(one: Candidate, limits: Limits, pays_back: bool) -> str | None:
    """Say which limit a candidate does not keep; without `pays_back` the job cannot run in eager
    anyway.
    """
    needs = _exceed_memory(one.peak_bytes, limits)
    if needs or limits.steps is None or not pays_back:
        return needs
    if one.compile_s is None:
        return "its compile time is not known"
    if one.total_share(limits.steps) < 1:
        return None
    is_upper_bound = "compile_contended" in one.entry.flags
    verb = "is not shown to" if is_upper_bound else "does not"
    return f"{verb} pay back within {limits.steps:,} steps"


def _rate_certainty(candidates: Sequence[Candidate]) -> str | None:
    if not candidates:
        return None
    if all(one.speedup.variance is not None for one in candidates):
        return "tested"
    if any(one.entry.result.processes == 1 for one in candidates):
        return "single_process"
    return "untested"


def _explain_unknown(one: Candidate) -> str:
    return f"{one.name} measured {one.described_speedup}, but {one.unknown}"


def _choose_fastest(
    choice: Choice,
    faster: Sequence[Candidate],
    left: Sequence[Candidate],
    unknown: Sequence[Candidate],
) -> Choice:
    """Choose the fastest of the modes that are faster than eager, or the mode as fast that costs
    least.

    The speedups of the modes in `unknown` are not known, and these modes have no say.
    """
    steps = choice.limits.steps
    if steps is not None:
        chosen, tied = _choose_soonest(faster, left, steps)
        reason = f", and the least total time for {steps:,} steps, compiling included"
    else:
        chosen, tied, reason = _choose_equal(faster, left)
    if not reason and len(left) > 1:
        reason = ", faster than eager and every other mode"
    elif not reason:
        several = len(choice.entries) > 1
        alone = "every other mode is ruled out" if several else "no other mode was tried"
        reason = ", faster than eager" if unknown else f", faster than eager; {alone}"
    for one in unknown:
        reason += f"; {_explain_unknown(one)}"
    return _take(choice, chosen, f"{chosen.described_speedup}{reason}", tied)


def _choose_soonest(
    faster: Sequence[Candidate], left: Sequence[Candidate], steps: int
) -> tuple[Candidate, list[Candidate]]:
    """Choose the mode that ends a job of `steps` steps first, and list those that cost as much."""
    best = min(faster, key=lambda one: one.total_share(steps))
    differing = [best, *_select_slower(best, left), *_select_faster(best, left)]
    tied = []
    for one in left:
        most = best.total_share(steps) * (1 + _compare(one, best)[1])
        if one not in differing and one.total_share(steps) <= most:
            tied.append(one)
    return best, tied


def _choose_equal(
    faster: Sequence[Candidate], left: Sequence[Candidate]
) -> tuple[Candidate, list[Candidate], str]:
    """Choose the fastest mode or the cheapest that is as fast; list the others that are as fast,
    and say why they are not chosen.
    """
    best = max(faster, key=_rank_gain)
    slower = _select_slower(best, left)
    equals = [best, *(one for one in left if one is not best and one not in slower)]
    equal_gains = [one for one in equals if one in faster]
    # Beside a fastest mode that does not wait for the host, a mode that does wins by nothing but
    # its wide margin.
    rivals = [one for one in equal_gains if best.waits or one is best or not one.waits]
    # One of them may be faster than another though the fastest of all, a noisy one, is not.
    cheap = [one for one in rivals if not _select_faster(one, equal_gains)]
    chosen, why = _choose_cheapest(cheap)
    slower = [chosen, *_select_slower(chosen, equals)]
    tied = [one for one in equals if one not in slower]
    waiting: list[str] = []
    names_by_why: dict[str, list[str]] = defaultdict(list)
    for one in tied:
        if one in faster and one not in rivals:
            waiting.append(one.name)
        else:
            # Without a reason to choose another mode, the modes are not faster than eager.
            names_by_why[why or one.described_margin].append(one.name)
    reason = ""
    for differs, names in names_by_why.items():
        but = f"and it {why}"
        if not why:
            but = f"but {'is' if len(names) == 1 else 'are'} not faster than eager {differs}"
        reason += f"; {shorten_names(names)} cannot be told apart from it, {but}"
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        reason += (
            f"; {shorten_names(waiting)} cannot be told apart from it, but {verb} for the host"
        )
    return chosen, tied, reason


def _take(choice: Choice, chosen: Candidate, reason: str, tied: Sequence[Candidate] = ()) -> Choice:
    doubts = []
    if choice.limits.steps and "compile_contended" in chosen.entry.flags:
        doubts.append("its compile time is an upper bound")
    if choice.limits.memory_gib and chosen.peak_bytes is None:
        doubts.append("how much memory it needs is not known")
    return replace(
        _rest_on(choice, chosen, reason, doubts),
        recommended=chosen.name,
        chosen=chosen,
        tied=tuple(one.name for one in tied),
        eager_s=chosen.eager.ratio,
    )


def _stay_eager(choice: Choice, left: Sequence[Candidate], which: str) -> Choice:
    """Say why no mode is recommended: none in `left`, which are those that `which` says, is faster
    than eager.
    """
    nearest = max(left, key=lambda one: one.own_speedup)
    reason = f"{which} is faster than eager {nearest.described_margin}; nearest is {nearest.name}"
    choice = _rest_on(choice, nearest, f"{reason}, {nearest.described_speedup}")
    not_tried = _list_untried(choice, left)
    if not not_tried:
        return choice
    verb = "does" if len(left) == 1 else "do"
    names = shorten_names([one.name for one in left])
    recommended = f"{names} {verb} not pay; {shorten_names(not_tried)} not tried"
    return replace(choice, recommended=recommended, not_tried=not_tried)


def _rest_on(choice: Choice, one: Candidate, reason: str, doubts: Sequence[str] = ()) -> Choice:
    """Rest the choice on a mode, and say what makes its speedup less sure than it looks; `doubts`
    are further reasons.
    """
    moved = "" if choice.eager_agrees else EAGER_MOVED
    flagged = prefix("flagged ", ", ".join(one.doubts))
    return replace(
        choice,
        reason=join([reason, moved, flagged, *doubts]),
        doubts=one.doubts,
        doubts_eager=not choice.eager_agrees,
        rests_on=one.entry,
    )


def _explain_nothing(choice: Choice, refused: Mapping[Entry, str]) -> Choice:
    """Say what became of trials of which none can be compared; if the compiler is to blame, the
    user stays eager.
    """
    failed = set()
    for entry in refused:
        judged = entry.record.judges_the_compiler and not entry.result.is_void_by_script
        if judged and not entry.is_ok:
            failed.add(entry.record.status)
    if failed:
        return replace(choice, reason=f"no mode gave a right result: {', '.join(sorted(failed))}")
    outcomes = tuple(sorted(set(refused.values())))
    reason = f"nothing could be compared: {', '.join(outcomes)}"
    return replace(choice, recommended=None, reason=reason, outcomes=outcomes)


def _list_untried(choice: Choice, left: Sequence[Candidate]) -> tuple[str, ...]:
    """List the modes of Inductor that could help: one without CUDA graphs, and on a GPU one with
    them.

    Graphs help a step whose device waits for the host, and a trial that does not know that may be
    one. On a CPU the modes with graphs have none.
    """
    tried_without = tried_graphs = False
    for entry in choice.entries:
        trial = entry.trial
        if trial.backend != "inductor" or not entry.record.judges_the_compiler:
            continue
        is_cpu, has_graphs = trial.device == "cpu", trial.mode in GRAPH_MODES
        tried_without |= trial.mode in WITHOUT_GRAPHS or (is_cpu and has_graphs)
        tried_graphs |= is_cpu or has_graphs or trial.compile.asks_for_cuda_graphs
    if not tried_without:
        return ("default",)
    for one in left:
        of_inductor = one.entry.trial.backend == "inductor"
        if of_inductor and one.gains_from_graphs and not tried_graphs:
            return ("reduce-overhead",)
    return ()


def _choose_cheapest(equals: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Choose the mode that compiles fastest, else uses least memory, else is mildest, and say which
    of these it is.
    """
    if len(equals) == 1:
        return equals[0], ""
    quick = _select_least(equals, lambda one: one.compile_s, ALIKE)
    if len(quick) == 1:
        return quick[0], "compiles fastest"
    quick = quick or equals
    small = _select_least(quick, lambda one: one.peak_bytes, MEMORY_ALIKE)
    if len(small) == 1 and all(one.peak_bytes for one in quick):
        return small[0], "needs the least memory"
    mildest = min(quick, key=lambda one: (rank_mode(one.entry.trial.mode), one.name))
    return mildest, "is the mildest"


def _select_least(
    modes: Sequence[Candidate], read: Callable[[Candidate], float | None], margin: float
) -> Sequence[Candidate]:
    """Select the modes whose cost is known and lies within a margin of the least."""
    costs = {}
    for one in modes:
        cost = read(one)
        if cost is not None:
            costs[one] = cost
    most = min(costs.values(), default=0.0) * (1 + margin)
    return [one for one, cost in costs.items() if cost <= most]
