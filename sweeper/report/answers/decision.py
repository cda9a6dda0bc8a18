"""Decide whether to compile a model, and in which mode: one `Answer` for each, which everything
that speaks of it takes.

The answer is `compile` where the speedup lies above the point at which the answer turns, with both
ends of its interval; `stay eager` where it lies below with both; else `open`. The point is 1.05, or
in a job of known length the speedup that pays for compiling. A step that is faster as measured and
by the clock of the device is `compile` as well, unsure. Sure answers rest on several processes, a
result that is verified, and no disturbance larger than the distance to the point. Of a user's own
script the whole loop decides, and the answer is `open` where nothing bounds what disturbed it.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from sweeper.analysis.gains import MIN_GAIN, beats, differ
from sweeper.analysis.stats import ratio_of
from sweeper.core.backends import CONTROLS
from sweeper.core.errors import ConfigError
from sweeper.core.record import say_while
from sweeper.core.trial import Trial
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import duration, join, prefix, ratio, shorten_names, show_steps

from .candidates import Candidate, find_candidate, name_mode
from .speedups import memory_change_percent, show_memory_change
from .trials import rank_mode

COMPILE, STAY, OPEN = "compile", "stay eager", "open"
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # of Inductor, with CUDA graphs
WITHOUT_GRAPHS = ("default", "max-autotune-no-cudagraphs")
ALIKE = 0.10  # compile times that lie nearer together do not decide between modes
MIN_MEMORY_CHANGE = 5  # percent; a smaller change of the peak is not said
GIB = 2**30


@dataclass(frozen=True)
class Limits:
    """What the job at hand allows; None: no limit."""

    steps: int | None = None  # its length: compiling must have paid back by then
    memory_gib: float | None = None  # of a step's peak

    def __post_init__(self) -> None:
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps >= 1):
            raise ConfigError(f"steps={self.steps!r}: a whole number of at least 1, e.g. 10000")
        if self.memory_gib is not None and not 0 < self.memory_gib < math.inf:
            raise ConfigError(f"max_memory_gib={self.memory_gib!r}: GiB above 0, e.g. 40")

    def __str__(self) -> str:
        steps = f"{self.steps:,} steps" if self.steps else ""
        memory = f"{self.memory_gib:g} GiB" if self.memory_gib else ""
        return join((steps, memory), ", ")

    def exceeded_by(self, peak_bytes: float | None) -> str:
        """Say how much memory an arm needs where that is beyond the limit."""
        if self.memory_gib is None or peak_bytes is None or peak_bytes <= self.memory_gib * GIB:
            return ""
        return f"needs {peak_bytes / GIB:.1f} GiB of {self.memory_gib:g}"


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Answer:
    """What to do with a model, and how sure that is."""

    entries: tuple[Entry, ...]
    limits: Limits
    batch_size: int | None  # None for a user's own script
    verdict: str = OPEN
    best: Candidate | None = None  # to take, or the one that came nearest; None: none was right
    why_unsure: tuple[str, ...] = ()
    why_not: str = ""  # of `stay eager` and `open`: one sentence
    tied: tuple[str, ...] = ()  # other modes that cannot be told apart from the best
    ruled_out: tuple[str, ...] = ()  # `mode: why` of what failed or is beyond a limit
    not_tried: tuple[str, ...] = ()  # modes that could help where no mode that was tried does

    @property
    def entry(self) -> Entry:
        """A trial of the model, for what all of them have in common."""
        return self.entries[0]

    @property
    def trial(self) -> Trial:
        return self.entry.trial

    @property
    def chosen(self) -> Candidate | None:
        """The mode to take; None: none."""
        return self.best if self.verdict == COMPILE else None

    @property
    def is_sure(self) -> bool:
        return self.verdict != OPEN and not self.why_unsure

    @property
    def recommended(self) -> str:
        return self.chosen.name if self.chosen else self.verdict

    @property
    def gain(self) -> float:
        """The speedup of the mode to take; 0 without one."""
        return self.chosen.gain.value if self.chosen else 0.0

    @property
    def total_eager_s(self) -> float | None:
        """Wall seconds of the job in eager."""
        if self.best and self.limits.steps:
            return self.limits.steps * self.best.eager_s
        return None

    @property
    def total_compiled_s(self) -> float | None:
        """Wall seconds of the job in the mode to take, compiling included."""
        if self.chosen and self.limits.steps:
            return self.chosen.total_s(self.limits.steps)
        return None

    def __str__(self) -> str:
        """E.g. `compile default: 1.28x [1.25, 1.31], 1.29x by the device; pays back after 3,180
        steps (12 min); peak memory -17 %`.
        """
        unsure = prefix("; not sure: ", ", ".join(self.why_unsure))
        one = self.chosen
        if one is None:
            return f"{self.verdict}: {self.why_not}{unsure}"
        name = f"compile {one.name}" if self.is_sure else f"{one.name}, unsure"
        figures = [show_gain(one)]
        steps = one.result.break_even_steps.value
        if steps is not None:
            took = duration(one.total_s(math.ceil(steps)) or 0.0)
            figures.append(f"pays back after {show_steps(steps)} steps ({took})")
        if abs(memory_change_percent(one.entry) or 0.0) >= MIN_MEMORY_CHANGE:
            figures.append(f"peak memory {show_memory_change(one.entry)}")
        return f"{name}: {join(figures)}{unsure}"


def show_gain(one: Candidate) -> str:
    """E.g. `1.28x [1.25, 1.31], 1.29x by the device`, or `1.28x (1.25 to 1.31)` where there is no
    interval; of a script its loop before its step.
    """
    shown = f"{one.shown}x {one.bounds}"
    step = f"step {ratio(ratio_of(one.result.speedup))}x" if one.of_loop else ""
    device = f"{ratio(one.device.value)}x by the device" if one.device else ""
    return join((shown, step, device), ", ")


def choose_all(entries: Iterable[Entry], limits: Limits = NO_LIMITS) -> list[Answer]:
    """Answer for each model, batch size, workload, precision and variant, in alphabetical order of
    the models.

    Of two records of one mode and backend one that is ok counts, then the later one. mode=eager has
    no say, and neither has a trial that leaves out or adds a feature.
    """
    groups: dict[Hashable, dict[tuple[str, str | None], Entry]] = defaultdict(dict)
    for entry in entries:
        trial = entry.trial
        if trial.mode == "eager" or trial.labels.feature:
            continue
        axes = trial.model.key, trial.batch_size, trial.workload, entry.variant
        group = groups[*axes, trial.labels.precision, trial.precision]
        other = group.get((trial.mode, trial.backend))
        if other is None or not other.is_ok or entry.is_ok:
            group[trial.mode, trial.backend] = entry
    answers = [choose(list(group.values()), limits) for group in groups.values()]
    return sorted(answers, key=_order)


def _order(answer: Answer) -> tuple[str, str, int, str, str]:
    labels, variant = answer.trial.labels, answer.entry.variant
    batch_size = answer.batch_size or 0
    return labels.model, answer.trial.workload, batch_size, variant, labels.precision


def choose(entries: Sequence[Entry], limits: Limits) -> Answer:
    """Answer for trials of one model, batch size, workload, precision and variant; `entries` has
    one or more.

    Without a limit of steps, the length of a script's training is one: as its user named it, else
    as the script ended by itself.
    """
    first = entries[0]
    if not limits.steps:
        planned = [entry.trial.labels.total_steps for entry in entries]
        planned += [entry.result.length for entry in entries]
        limits = replace(limits, steps=next(filter(None, planned), None))
    # The largest batch that ran, else the one that was asked for.
    ran = [entry.record.batch_size for entry in entries if entry.is_ok]
    batch_size = max(ran, default=first.trial.batch_size)
    candidates, ruled_out = _find_comparable(entries, batch_size, limits)
    peaks = [one.result.peak_memory_bytes.eager for one in candidates]
    eager_needs = limits.exceeded_by(min(filter(None, peaks), default=None))
    if eager_needs:
        ruled_out.append(f"eager: {eager_needs}")
    kept = [
        one for one in candidates if not limits.exceeded_by(one.result.peak_memory_bytes.compiled)
    ]
    answer = Answer(
        tuple(entries),
        limits,
        batch_size if first.record.known_batch_size else None,
        ruled_out=tuple(ruled_out),
    )
    if not kept:
        why = "neither eager nor a mode that is right fits" if eager_needs else "no mode fits"
        return replace(answer, why_not=why if candidates else _say_what_failed(entries))
    if eager_needs:  # so nothing has to be paid back
        return _take(answer, [replace(one, steps=None) for one in kept])
    unbounded = [one for one in kept if one.is_unbounded]
    bounded = [one for one in kept if not one.is_unbounded]
    gaining = [one for one in bounded if one.gain.low > one.turn]
    gaining = gaining or [one for one in bounded if one.may_gain]
    if gaining:
        disturbed = tuple(f"{one.name}: {', '.join(one.why_unsure)}" for one in unbounded)
        return _take(replace(answer, ruled_out=answer.ruled_out + disturbed), gaining)
    crossing = [one for one in kept if one.may_reach]
    nearest = max(crossing or kept, key=lambda one: one.gain.value)
    answer = replace(answer, best=nearest, not_tried=_list_untried(answer, kept))
    if crossing:
        return replace(answer, why_not=_say_range(nearest), why_unsure=nearest.why_unsure)
    # what another mode beats has one process, and cannot gain where that one does not
    left = [one for one in kept if not any(beats(other, one) for other in kept)]
    unsure = chain.from_iterable(one.why_unsure for one in left)
    return replace(
        answer,
        verdict=STAY,
        why_not=_say_why_to_stay(nearest),
        why_unsure=tuple(dict.fromkeys(unsure)),
    )


def _find_comparable(
    entries: Sequence[Entry], batch_size: int, limits: Limits
) -> tuple[list[Candidate], list[str]]:
    """Find the modes that can be compared, and `mode: why` of those that cannot or are beyond a
    limit.
    """
    candidates: list[Candidate] = []
    ruled_out: list[str] = []
    for entry in entries:
        one = find_candidate(entry, limits.steps)
        why = ""
        if entry.trial.backend in CONTROLS:
            why = "a control that compiles nothing"
        elif not entry.is_ok:
            why = entry.record.status
        elif entry.record.batch_size < batch_size:
            why = f"oom with batch {batch_size}"
        elif one is None:
            why = "no rounds that count"
        else:
            candidates.append(one)
            why = limits.exceeded_by(one.result.peak_memory_bytes.compiled)
        if why:
            ruled_out.append(f"{name_mode(entry)}: {why}")
    of_loop = [one for one in candidates if one.of_loop]
    for other in candidates:
        if of_loop and not other.of_loop:
            ruled_out.append(f"{other.name}: its loop was not timed")
    return of_loop or candidates, ruled_out


def _take(answer: Answer, gaining: Sequence[Candidate]) -> Answer:
    """Take the mode with which a job of known length ends first. Otherwise take, of the modes that
    none is told to be better than, a sure one if there is one, of these the one that compiles
    fastest, else the mildest; but none that waits for the host where a faster one does not.
    """

    def rank(one: Candidate) -> float:
        return one.gain.value if one.steps is None else -(one.total_s(one.steps) or math.inf)

    def compile_s(one: Candidate) -> float:
        return one.result.compile_cold_s or math.inf

    ranked = sorted(gaining, key=rank, reverse=True)
    equals: list[Candidate] = []
    for place, one in enumerate(ranked):
        if not any(differ(one, better) for better in ranked[:place]):
            equals.append(one)
    best = equals[0]
    if best.steps is None:
        sure = [one for one in equals if not one.why_unsure] or equals
        calm = max((one.gain.value for one in sure if not one.result.compiled_waits), default=0.0)
        kept = [one for one in sure if one.gain.value >= calm or not one.result.compiled_waits]
        longest_s = min(map(compile_s, kept)) * (1 + ALIKE)
        quick = [one for one in kept if compile_s(one) <= longest_s]
        best = min(quick, key=lambda one: (rank_mode(one.entry.trial.mode), one.name))
    return replace(
        answer,
        verdict=COMPILE,
        best=best,
        why_unsure=best.why_unsure,
        tied=tuple(one.name for one in equals if one is not best),
    )


def _say_range(nearest: Candidate) -> str:
    """Say between which ends its speedup lies, which leave the answer open."""
    shown = f"{nearest.name} {nearest.shown}x"
    if nearest.is_unbounded:
        return f"{shown} may be off by any amount"
    low, high = ratio(nearest.gain.low), ratio(nearest.gain.high)
    return f"{shown} may be {low}x to {high}x, and pays from {ratio(nearest.turn)}x on"


def _say_why_to_stay(nearest: Candidate) -> str:
    why = f"is less than {ratio(1 + MIN_GAIN)}x as fast as eager"
    if nearest.turn > 1 + MIN_GAIN:
        why, needed = "never pays back", nearest.result.break_even_steps.value
        if needed is not None:
            why = f"pays back after {math.ceil(needed):,} steps, and the job has {nearest.steps:,}"
    return f"{nearest.name} {why}; measured {show_gain(nearest)}"


def _say_what_failed(entries: Sequence[Entry]) -> str:
    """Say what became of trials of which none is right, e.g. `default: oom while compiling`."""
    parts = []
    for entry in entries:
        record = entry.record
        ended = f"{record.status}{say_while(record.phase)}"
        why = "" if record.status == "interrupted" else record.first_line
        parts.append(join((name_mode(entry), ended, why), ": "))
    return shorten_names(parts)


def _list_untried(answer: Answer, left: Sequence[Candidate]) -> tuple[str, ...]:
    """List the modes of Inductor that could help: one without CUDA graphs, and on a GPU one with
    them where the device waits for the host, or may.

    On a CPU the modes with graphs have none.
    """
    tried_without = tried_graphs = False
    for entry in answer.entries:
        trial = entry.trial
        if trial.backend != "inductor" or not entry.record.judges_the_compiler:
            continue
        is_cpu, has_graphs = trial.device == "cpu", trial.mode in GRAPH_MODES
        tried_without |= trial.mode in WITHOUT_GRAPHS or (is_cpu and has_graphs)
        tried_graphs |= is_cpu or has_graphs or trial.compile.asks_for_cuda_graphs
    if not tried_without:
        return ("default",)
    if tried_graphs:
        return ()
    for one in left:
        waits = one.result.compiled_waits_fraction
        # whether it would gain if the device never waited for the host, or may
        may_gain = waits is None or one.gain.value > (1 + MIN_GAIN) * (1 - waits)
        if one.entry.trial.backend == "inductor" and may_gain:
            return ("reduce-overhead",)
    return ()
