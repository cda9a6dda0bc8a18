"""Verdicts: whether a difference between two sides is a change, is none, or cannot be told.

Values in, values out. The row's verdict is about the compiled step alone, since a speedup also
falls when eager gets faster: by wall clock, and by device time where that alone shows a regression.
Where no test finds a change of a step, of the compile time or of the memory, its size may decide
(`unsampled_variance`). The rules and what they miss: docs/decisions/what-is-a-regression.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from sweeper.analysis import stats
from sweeper.analysis.derive import MIN_DRAWS_FOR_INTERVAL, MIN_PROCESSES_IF_HOST_BOUND
from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.margins import find_margin
from sweeper.analysis.stats import CONFIDENCE, Estimate, Interval
from sweeper.core.record import say_while
from sweeper.report.columns.formats import join

from .pairs import LOST, Pair, Sides
from .quantities import (
    BY_SIZE,
    COMPILE,
    COMPILED,
    COMPILED_DEVICE,
    EAGER,
    EAGER_DEVICE,
    QUANTITIES,
    SPEEDUP,
    STEP_TIMES,
    Quantity,
)
from .unsampled_variance import (
    count_fewest,
    find_spread,
    find_unsampled_logs,
    has_few,
    is_host_bound,
    is_spoilt,
)

SIGNIFICANCE = 1 - CONFIDENCE
# Backends that generate no code and autotune no kernels, so that all draws are alike.
WITHOUT_AUTOTUNING = ("eager", "aot_eager", "cudagraphs")
NOT_RUN = ("unavailable", "interrupted")
MIN_PROCESSES_TO_MODERATE = 3  # of a side
MIN_TO_MODERATE = 8  # with fewer estimates, their variances say little of each other

# in the order of the tables
VERDICTS = ("SLOWER", "BROKE", "FASTER", "FIXED", "UNRESOLVED", "NEW", "GONE", "SAME")
REGRESSIONS = {"SLOWER", "BROKE"}


@dataclass(frozen=True)
class Change:
    """One quantity of a pair. `estimate` is of the log of HEAD / BASE, None where a side has no
    figure.
    """

    sides: Sides
    verdict: str = "UNRESOLVED"  # also until it is judged
    # why it is UNRESOLVED, or its size is uncertain; None also until it is judged
    reason: str | None = None
    base: float | None = None  # geometric means, as in the tables
    head: float | None = None
    unit: str | None = None  # processes or draws: what the test is over
    estimate: Estimate | None = None
    p: float | None = None  # of the difference, for the number of rows and of clocks
    # of an UNRESOLVED one: the share of the smallest increase that its figures exclude
    ruled_out: float | None = None

    @property
    def interval(self) -> Interval | None:
        return self.estimate.interval() if self.estimate else None

    @property
    def log(self) -> float:
        """The log of HEAD / BASE of a change that has an estimate."""
        assert self.estimate is not None
        return self.estimate.log


@dataclass(frozen=True)
class JudgedPair:
    """A pair with its verdict; `changes` by name of quantity, none where a side was not
    measured.
    """

    pair: Pair
    verdict: str
    reason: str | None = None
    changes: Mapping[str, Change] = field(default_factory=dict)
    note: str | None = None

    def find_change(self, quantity: Quantity) -> Change | None:
        return self.changes.get(quantity.name)

    @property
    def decisive(self) -> Change | None:
        """The change of the compiled step by the clock that decided, else by wall clock."""
        wall = self.find_change(COMPILED)
        if wall and self.verdict == "SLOWER" != wall.verdict:
            return self.find_change(COMPILED_DEVICE)
        return wall


@dataclass(frozen=True)
class Control:
    """How far eager moved between two sessions by one clock: `shift` is the median log of HEAD /
    BASE over `rows` rows.

    The eager step does not depend on the compiler. `max_shift` is how far the eager times of one
    sweep may lie apart (the flag eager_moved). Beyond it the machine or all of torch changed, and
    only a change beyond what hosts differ by says anything about the compiler.
    """

    shift: float | None = None  # None: no row has this time of eager on both sides
    rows: int = 0
    max_shift: float = math.inf

    @property
    def moved(self) -> bool:
        """Whether eager moved so far that no time by this clock is tested."""
        return abs(self.log) > math.log1p(self.max_shift)

    @property
    def share(self) -> float | None:
        return None if self.shift is None else math.expm1(self.shift)

    @property
    def log(self) -> float:
        """The shift, 0 where it is not known."""
        return self.shift or 0.0


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of the pairs, and a control for each clock by the name of eager's
    quantity.
    """

    rows: tuple[JudgedPair, ...]
    controls: Mapping[str, Control]

    @property
    def control(self) -> Control:
        """The control by wall clock."""
        return self.controls[EAGER.name]

    @property
    def verdicts(self) -> set[str]:
        return {row.verdict for row in self.rows}

    @property
    def regressed(self) -> bool:
        return bool(self.verdicts & REGRESSIONS)

    @property
    def nothing_judged(self) -> bool:
        return self.verdicts <= {"UNRESOLVED", "NEW", "GONE"}

    @property
    def unresolved(self) -> int:
        """How many rows are UNRESOLVED although both sides were measured."""
        return sum(row.verdict == "UNRESOLVED" and row.pair.ok for row in self.rows)


def judge(pairs: Sequence[Pair], min_effect: float | None = None) -> Comparison:
    """Judge every quantity of every pair, then every pair. Without `min_effect` each quantity has
    its own.
    """
    measured = [pair.both for pair in pairs if pair.both and pair.ok]
    raw = {}
    for quantity in QUANTITIES:
        raw[quantity.name] = [compare_quantity(sides, quantity) for sides in measured]
    controls = {}
    for quantity in (EAGER, EAGER_DEVICE):
        controls[quantity.name] = _measure_control(raw[quantity.name], quantity)
    clocks = 0  # that test the step of any row, since the false alarms of both add up
    for quantity in STEP_TIMES:
        if not controls[quantity.control].moved:
            clocks += any(not change.reason for change in raw[quantity.name])
    judged: list[dict[str, Change]] = [{} for _ in measured]
    for quantity in QUANTITIES:
        limited = replace(quantity, min_effect=min_effect or quantity.min_effect)
        control = controls.get(quantity.control, Control())
        tested_by = clocks if quantity in STEP_TIMES else 1
        changes = judge_quantity(limited, raw[quantity.name], control, tested_by)
        for of_pair, change in zip(judged, changes, strict=True):
            if quantity in BY_SIZE:
                eager = of_pair.get(quantity.control)  # judged before
                change = judge_by_size(limited, change, eager, control)
            of_pair[quantity.name] = change
    rows = []
    left = iter(judged)
    for pair in pairs:
        if pair.ok:
            rows.append(_judge_measured(pair, next(left)))
        else:
            rows.append(JudgedPair(pair, *_judge_statuses(pair)))
    return Comparison(tuple(rows), controls)


def _measure_control(changes: Sequence[Change], quantity: Quantity) -> Control:
    """Measure how far a time of eager moved, from the rows whose host does not spoil it where there
    are any.
    """
    known = []
    calm = []
    limit = math.inf
    for change in changes:
        if change.estimate:
            known.append(change.log)
            if not is_host_bound(change.sides, quantity):
                calm.append(change.log)
            limit = min(limit, find_margin(change.sides[0].trial.device).eager)
    logs = calm or known
    return Control(median(logs), len(logs), limit) if logs else Control()


def compare_quantity(sides: Sides, quantity: Quantity) -> Change:
    """The difference of two measured sides, with the reason where it cannot be judged."""
    if not count_fewest(sides, quantity):
        return Change(sides, reason="not measured on a side")
    in_base, in_head = [stats.group_logs_by_draw(side.take(quantity)) for side in sides]
    over_draws = min(len(in_base), len(in_head)) >= MIN_DRAWS_FOR_INTERVAL
    base = stats.mean_over_draws(in_base, over_draws)
    head = stats.mean_over_draws(in_head, over_draws)
    unlike = explain_incomparable(sides, quantity)
    reason = unlike or explain_unjudged(sides, quantity, over_draws)
    unit = "draws" if over_draws else "processes"
    estimate = None if unlike else stats.difference(head, base)
    return Change(sides, "UNRESOLVED", reason, base.ratio, head.ratio, unit, estimate)


def explain_incomparable(sides: Sides, quantity: Quantity) -> str | None:
    """Explain why two figures cannot be compared, not even as a ratio; None where they can be
    compared.
    """
    base, head = sides
    if base.batch_size != head.batch_size:
        return f"out of memory: batch {base.batch_size} in BASE, {head.batch_size} in HEAD"
    if base.clock != head.clock and quantity in (EAGER, COMPILED, SPEEDUP):
        return f"measure.clock={base.clock} in BASE, {head.clock} in HEAD"
    return None


def explain_unjudged(sides: Sides, quantity: Quantity, over_draws: bool) -> str | None:
    """Why the samples of two sides allow no verdict, whatever they say; None where they allow
    one.
    """
    if is_spoilt(sides, quantity):
        return f"others kept the processor busy while it compiled ({quantity.spoilt_by})"
    fewest = count_fewest(sides, quantity)
    if fewest < 2:
        if quantity is COMPILE:
            return "one cold compile on a side"
        return "a single process on a side: no variance"
    if fewest < MIN_PROCESSES_IF_HOST_BOUND and is_host_bound(sides, quantity):
        return f"host-bound, with fewer than {MIN_PROCESSES_IF_HOST_BOUND} processes on a side"
    if quantity.of_artifact and not over_draws and not _same_artifact(sides):
        return (
            f"fewer than {MIN_DRAWS_FOR_INTERVAL} draws on a side, and compiled code or "
            "autotuning may differ"
        )
    return None


def _same_artifact(sides: Sides) -> bool:
    """Whether all processes of both sides ran one compiled program, so that autotuning cannot
    differ between them.
    """
    trials = [side.trial for side in sides]
    if all(trial.mode == "eager" or trial.backend in WITHOUT_AUTOTUNING for trial in trials):
        return True
    base, head = sides
    artifacts = base.artifacts | head.artifacts
    return len(artifacts) == 1 and None not in artifacts


def judge_quantity(
    quantity: Quantity, changes: Sequence[Change], control: Control, clocks: int
) -> list[Change]:
    """Test one quantity of all measured pairs.

    p values are multiplied by the number of `clocks` that decide about a row (Bonferroni).
    """
    judged = list(changes)
    if quantity.pooled and not control.moved:
        judged = _moderate(quantity, changes)
    tests = {}  # by place
    p_values = []
    for place, change in enumerate(judged):
        if change.reason:
            continue
        if control.moved:
            reason = f"eager itself moved by {percent(control.log)} (median over rows)"
            judged[place] = replace(change, reason=reason)
            continue
        assert change.estimate is not None
        # with or without the session's shift, whichever is nearer to 0
        log = _nearest_to_0(change.log, change.log - control.log)
        tests[place] = replace(change.estimate, log=log)
        p = stats.p_value(tests[place])
        assert p is not None
        p_values.append(p)
    adjusted = stats.benjamini_hochberg(p_values)
    for (place, test), p in zip(tests.items(), adjusted, strict=True):
        change = replace(judged[place], p=min(1.0, clocks * p))
        margin = _find_margin(quantity, change)
        # a change needs significance and size, with and without the shift; SAME needs a test of its
        # own
        furthest = max(abs(change.log), abs(change.log - control.log))
        equality_p = stats.equivalence_p_value(replace(test, log=furthest), margin)
        assert equality_p is not None
        if clocks * p <= SIGNIFICANCE and abs(test.log) >= margin:
            change = replace(change, verdict=quantity.name_direction(test.log))
        elif equality_p <= SIGNIFICANCE:
            change = replace(change, verdict="SAME")
        else:
            within = f"{100 * math.expm1(margin):.0f} %"
            reason = f"the tests show neither a change nor equality within {within}"
            change = replace(change, reason=reason)
        judged[place] = change
    return judged


def _moderate(quantity: Quantity, changes: Sequence[Change]) -> list[Change]:
    """Draw variances over processes towards those of similar rows, where there are enough of them.

    Host-bound rows are pooled only with each other. Variances over draws are not moderated: how
    much autotuning varies differs from model to model, and moderating would flag up to 17 % of
    simulated sweeps. Neither are variances of two processes: where models differ in noise,
    moderating would flag half of the sweeps.
    """
    similar: dict[bool, dict[int, Estimate]] = {False: {}, True: {}}  # by whether host-bound
    for place, change in enumerate(changes):
        if change.reason or change.unit != "processes" or change.estimate is None:
            continue
        if count_fewest(change.sides, quantity) >= MIN_PROCESSES_TO_MODERATE:
            is_bound = any(side.host_bound_arms for side in change.sides)
            similar[is_bound][place] = change.estimate
    moderated = list(changes)
    for found in similar.values():
        if len(found) >= MIN_TO_MODERATE:
            estimates = stats.moderate_variances(list(found.values()))
            for place, estimate in zip(found, estimates, strict=True):
                moderated[place] = replace(changes[place], estimate=estimate)
    return moderated


def _nearest_to_0(*logs: float) -> float:
    """The smallest of several changes; 0 where their signs differ."""
    return 0.0 if min(logs) <= 0 <= max(logs) else min(logs, key=abs)


def _find_margin(quantity: Quantity, change: Change) -> float:
    """The log of the smallest change that counts."""
    assert change.base is not None
    return math.log1p(max(quantity.min_effect, quantity.floor / change.base))


def judge_by_size(
    quantity: Quantity, change: Change, eager: Change | None, control: Control
) -> Change:
    """Judge what no test could judge, by whether it changed by more than what was not sampled
    explains; where it did not, say which increase is ruled out.

    The change must hold as measured and, of a time that eager has too, without the session's shift
    and beside the eager arm of its own trial, which took turns with it. Beyond what was
    not sampled it must exceed what its own processes (or draws) show as noise. Of too few processes
    on a host this is their spread, since their interval is many times as wide.
    """
    if change.verdict != "UNRESOLVED" or change.estimate is None:
        return change
    logs = [change.log, change.log - control.log]
    if eager and eager.estimate:
        logs.append(change.log - eager.log)
    least = _nearest_to_0(*logs)
    draws, host = find_unsampled_logs(change.sides, quantity, control.moved)
    noise = change.estimate.half_width() or 0.0
    if has_few(change.sides, quantity):
        noise = find_spread(change.sides, quantity)
    reach = draws + max(host, noise)
    if abs(least) <= max(_find_margin(quantity, change), reach):
        if change.p is not None:
            reach = noise  # a test could judge it: nothing is left to be sampled
        return replace(change, ruled_out=math.expm1(max(0.0, max(logs) + reach)))
    reason = change.reason
    if change.p is not None:
        reason = "not significant once all rows and clocks count"
    verdict = quantity.name_direction(least)
    return replace(change, verdict=verdict, reason=f"size uncertain ({reason})")


def _judge_measured(pair: Pair, changes: Mapping[str, Change]) -> JudgedPair:
    """Judge the compiled step; a slower device decides where wall clock shows no change.

    A faster device does not: the host may have become slower.
    """
    wall, device = changes[COMPILED.name], changes[COMPILED_DEVICE.name]
    verdict, reason, notes = wall.verdict, wall.reason, [_explain_speedup(changes)]
    if device.verdict == "SLOWER" and verdict != "SLOWER":
        if verdict == "FASTER" and reason is None:
            notes.insert(0, f"by device time it is SLOWER ({percent(device.log)})")
        else:
            why = f" ({reason})" if reason else ""
            parts = (f"wall {verdict}{why}", "device SLOWER", device.reason or "")
            verdict, reason = "SLOWER", join(parts, ", ")
    # its speed may be that of another computation
    unverified = [name for name, side in pair.sides if UNVERIFIED in side.flags]
    if len(unverified) == 1:
        notes.append(f"not verified in {', '.join(unverified)} ({UNVERIFIED})")
    return JudgedPair(pair, verdict, reason, changes, join(notes) or None)


def _judge_statuses(pair: Pair) -> tuple[str, str | None]:
    """Return verdict and reason of a pair of which a side was not measured."""
    said, lost = [], False
    for name, side in pair.sides:
        if side.lost:
            lost = True
            said.append(LOST[side.status].format(name))
        elif side.status != "ok":
            said.append(f"{side.status}{say_while(side.phase)} in {name}")
    reason = ", ".join(said)
    verdict = "UNRESOLVED"
    if not lost:
        if not pair.base:
            verdict = "NEW"
        elif not pair.head:
            verdict = "GONE"
        elif pair.head.status == "ok" and pair.base.status != "interrupted":
            verdict = "FIXED"
            if UNVERIFIED in pair.head.flags:
                verdict = "UNRESOLVED"
                reason += f", ok but not verified in HEAD ({UNVERIFIED})"
        elif pair.base.status == "ok" and pair.head.status not in NOT_RUN:
            verdict = "BROKE"
    return verdict, reason or None


def _explain_speedup(changes: Mapping[str, Change]) -> str:
    """Say when the speedup changed mostly because eager did, and the compiled step was not found to
    do the same.
    """
    eager, compiled, speedup = changes[EAGER.name], changes[COMPILED.name], changes[SPEEDUP.name]
    if not eager.estimate or speedup.verdict not in SPEEDUP.verdicts:
        return ""
    explaining = COMPILED.name_direction(-speedup.log)
    if compiled.verdict == explaining or eager.log / speedup.log < 1 / 2:
        return ""
    return f"the speedup is {speedup.verdict} because eager changed ({percent(eager.log)})"


def percent(log: float) -> str:
    """A log ratio as a signed change, e.g. `+3.1 %`."""
    return f"{round(100 * math.expm1(log), 1) + 0.0:+.1f} %"  # without a negative zero
