"""Verdicts: whether what differs between two sides is a difference, is none, or cannot be told.

Place in the flow: `Pair -> Row`; values in, values out. The row's verdict is about the compiled step alone, since a
speedup also falls when eager gets faster. The rules and what they miss: docs/decisions/what-is-a-regression.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sweeper.analysis.metrics import DRAWS_FOR_AN_INTERVAL, PROCESSES_IF_HOST_BOUND
from sweeper.analysis.stats import (
    CONFIDENCE,
    Estimate,
    benjamini_hochberg,
    by_draw,
    difference,
    equivalence_p_value,
    mean_over_draws,
    moderated,
    p_value,
)
from sweeper.compare.pairs import Pair
from sweeper.compare.quantities import COMPILE, COMPILED, EAGER, QUANTITIES, SPEEDUP, Quantity
from sweeper.compare.sides import REASONS, Sample, Side
from sweeper.loading.cross_trial import TRIALS_TO_MODERATE, max_eager_spread

MIN_EFFECT = 0.02  # what --min-effect is unless given: smaller changes are nobody's regression
SIGNIFICANCE = 1 - CONFIDENCE
# Backends that generate no code and race no kernels, so that a draw has no luck.
NO_RACES = ("eager", "aot_eager", "cudagraphs")
NOT_RUN = ("unavailable", "interrupted")

VERDICTS = ("SLOWER", "BROKE", "FASTER", "FIXED", "UNRESOLVED", "NEW", "GONE", "SAME")  # in the order of the tables
REGRESSIONS = ("SLOWER", "BROKE")


@dataclass(frozen=True)
class Change:
    """One quantity of a pair. `estimate` is of the log of HEAD / BASE; nothing but the verdict where one is missing."""

    verdict: str
    reason: str | None = None  # of a verdict that is not a finding
    base: float | None = None  # geometric means, as in the tables
    head: float | None = None
    unit: str | None = None  # processes or draws: what the test is over
    estimate: Estimate | None = None
    adjusted_p: float | None = None  # of the difference, after Benjamini and Hochberg over all rows

    @property
    def open(self) -> bool:
        """Whether it is still to be judged."""
        return self.verdict == ""

    @property
    def judged(self) -> bool:
        return self.verdict not in ("", "UNRESOLVED")

    @property
    def found(self) -> bool:
        return self.judged and self.verdict != "SAME"


@dataclass(frozen=True)
class Row:
    """A pair with its verdict; `changes` by name of quantity, empty where a side was not measured."""

    pair: Pair
    verdict: str
    reason: str | None = None
    changes: Mapping[str, Change] | None = None
    note: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of the pairs. `eager_shift` is the median log of HEAD / BASE of eager over `controls` rows.

    The eager step does not depend on the compiler. Beyond `most_shift`, within which the trials of one sweep agree (the
    flag eager_moved), the machine or all of torch is another, and an absolute time says nothing about the compiler.
    """

    rows: tuple[Row, ...]
    eager_shift: float | None
    controls: int
    most_shift: float = max_eager_spread("cuda")

    @property
    def moved(self) -> bool:
        """Whether eager moved so far that no absolute time is judged."""
        return self.eager_shift is not None and abs(self.eager_shift) > math.log1p(self.most_shift)

    @property
    def regressed(self) -> bool:
        return any(row.verdict in REGRESSIONS for row in self.rows)

    @property
    def unresolved(self) -> int:
        """How many rows both sides measured, and are UNRESOLVED all the same."""
        return sum(row.verdict == "UNRESOLVED" and row.pair.ok for row in self.rows)


def judge(pairs: Sequence[Pair], min_effect: float = MIN_EFFECT) -> Comparison:
    """Judge every quantity of every pair, then every pair."""
    measured = [index for index, pair in enumerate(pairs) if pair.ok]
    raw = {item.name: [raw_change(pairs[index], item) for index in measured] for item in QUANTITIES}
    comparison = _control(list(zip((pairs[index] for index in measured), raw[EAGER.name], strict=True)))
    judged = {
        item.name: judge_changes(
            item, raw[item.name], [_class(pairs[index]) for index in measured], comparison, min_effect
        )
        for item in QUANTITIES
    }
    changes = {index: {name: judged[name][place] for name in judged} for place, index in enumerate(measured)}
    rows = tuple(_row(pair, changes.get(index)) for index, pair in enumerate(pairs))
    return replace(comparison, rows=rows)


def _control(eager: Sequence[tuple[Pair, Change]]) -> Comparison:
    """What eager did, by the rows in which it does not wait for the host, where there are any."""
    known = [(pair, change.estimate.log) for pair, change in eager if change.estimate]
    calm = [log for pair, log in known if pair.both and not _host_bound(pair.both, EAGER.arms)]
    shifts = calm or [log for _, log in known]
    most = [max_eager_spread(side.trial.device) for pair, _ in known for side in pair.both or ()]
    return Comparison((), median(shifts) if shifts else None, len(shifts), min(most, default=max_eager_spread("cuda")))


def raw_change(pair: Pair, quantity: Quantity) -> Change:
    """The difference of two measured sides, and why it cannot be judged where that is so."""
    assert pair.both is not None
    samples = [side.samples.get(quantity.name, ()) for side in pair.both]
    if not all(samples):
        return Change("UNRESOLVED", "not measured on a side")
    draws = all(len({sample.draw for sample in of_side}) >= DRAWS_FOR_AN_INTERVAL for of_side in samples)
    logs = (by_draw((sample.draw, math.log(sample.value)) for sample in of_side) for of_side in samples)
    base, head = (mean_over_draws(of_side, draws) for of_side in logs)
    unlike = why_unlike(pair.both, quantity)
    reason = unlike or why_not(pair.both, quantity, samples, draws)
    return Change(
        "UNRESOLVED" if reason else "",
        reason,
        base.ratio,
        head.ratio,
        "draws" if draws else "processes",
        None if unlike else difference(head, base),
    )


def why_unlike(sides: tuple[Side, Side], quantity: Quantity) -> str | None:
    """Why the figures are not of the same thing, so that not even their ratio means anything; None where they are."""
    base, head = sides
    if base.batch_size != head.batch_size:
        return f"out of memory: batch {base.batch_size} in BASE, {head.batch_size} in HEAD"
    if base.clock != head.clock and quantity in (EAGER, COMPILED, SPEEDUP):
        return f"measure.clock={base.clock} in BASE, {head.clock} in HEAD"
    return None


def why_not(
    sides: tuple[Side, Side], quantity: Quantity, samples: Sequence[Sequence[Sample]], over_draws: bool
) -> str | None:
    """Why these samples allow no verdict, whatever they say; None where they do."""
    base, head = sides
    if min(map(len, samples)) < 2:
        return "one cold compile on a side" if quantity is COMPILE else "a single process on a side: no variance"
    if quantity is COMPILE and any("compile_contended" in side.flags for side in sides):
        return "others kept the processor busy while it compiled (compile_contended)"
    if min(map(len, samples)) < PROCESSES_IF_HOST_BOUND and _host_bound(sides, quantity.arms):
        return f"host-bound, with fewer than {PROCESSES_IF_HOST_BOUND} processes on a side"
    if quantity.of_artifact and not over_draws and not same_artifact(base, head):
        return f"fewer than {DRAWS_FOR_AN_INTERVAL} draws on a side, and compiled code or autotuning may differ"
    return None


def same_artifact(base: Side, head: Side) -> bool:
    """Whether all processes of both sides ran one compiled program, so that no draw's luck is between them."""
    if all(side.trial.mode == "eager" or side.trial.backend in NO_RACES for side in (base, head)):
        return True
    artifacts = base.artifacts | head.artifacts
    return len(artifacts) == 1 and None not in artifacts


def _host_bound(sides: tuple[Side, Side], arms: Sequence[str]) -> bool:
    return any(side.host_bound_arms in (*arms, "both") for side in sides) if arms else False


def _class(pair: Pair) -> bool:
    """Rows whose noise has one cause: the host's is another than the rest."""
    return any(side.host_bound_arms is not None for side in pair.both or ())


def judge_changes(
    quantity: Quantity, changes: Sequence[Change], classes: Sequence[bool], control: Comparison, min_effect: float
) -> list[Change]:
    """Verdicts on one quantity of all rows; `classes` says whose noise is alike."""
    if quantity.absolute and control.moved:
        reason = f"eager itself moved by {percent(control.eager_shift)} (median over rows): no absolute verdict"
        changes = [replace(item, verdict="UNRESOLVED", reason=reason) if item.open else item for item in changes]
    if quantity.pooled:
        changes = _moderated(changes, classes)
    shift = control.eager_shift or 0.0 if quantity.absolute else 0.0
    places = [place for place, item in enumerate(changes) if item.open]
    tests = [_nearest(_estimate(changes[place]), shift) for place in places]
    adjusted = benjamini_hochberg([p for test in tests if (p := p_value(test)) is not None])
    judged = list(changes)
    for place, test, p in zip(places, tests, adjusted, strict=True):
        judged[place] = _verdict(quantity, replace(changes[place], adjusted_p=p), test, shift, min_effect)
    return judged


def _estimate(change: Change) -> Estimate:
    assert change.estimate is not None
    return change.estimate


def _moderated(changes: Sequence[Change], classes: Sequence[bool]) -> list[Change]:
    """Variances over processes drawn towards those of rows alike, where there are enough of them.

    Not those over draws: how lucky kernels are differs from model to model, and simulated sweeps then flag up to 17 %.
    """
    groups: dict[bool, list[int]] = defaultdict(list)
    for place, (change, kind) in enumerate(zip(changes, classes, strict=True)):
        if change.open and change.unit == "processes":
            groups[kind].append(place)
    found = list(changes)
    for places in groups.values():
        if len(places) >= TRIALS_TO_MODERATE:
            drawn = moderated([_estimate(changes[place]) for place in places])
            for place, estimate in zip(places, drawn, strict=True):
                found[place] = replace(changes[place], estimate=estimate)
    return found


def _nearest(estimate: Estimate, shift: float) -> Estimate:
    """The difference with or without the session's shift, whichever is nearer to none; 0 where they disagree."""
    apart = (estimate.log, estimate.log - shift)
    return replace(estimate, log=0.0 if min(apart) <= 0 <= max(apart) else min(apart, key=abs))


def _verdict(quantity: Quantity, change: Change, test: Estimate, shift: float, min_effect: float) -> Change:
    """A difference needs significance and size, with and without the shift; SAME needs a test of its own."""
    assert change.base is not None
    margin = math.log1p(max(min_effect, quantity.floor / change.base))
    if change.adjusted_p is not None and change.adjusted_p <= SIGNIFICANCE and abs(test.log) >= margin:
        return replace(change, verdict=quantity.more if test.log > 0 else quantity.less)
    furthest = max(abs(_estimate(change).log), abs(_estimate(change).log - shift))
    equal = equivalence_p_value(replace(test, log=furthest), margin)
    if equal is not None and equal <= SIGNIFICANCE:
        return replace(change, verdict="SAME")
    return replace(
        change, verdict="UNRESOLVED", reason=f"shown is neither a change nor equality within {math.expm1(margin):.0%}"
    )


def _row(pair: Pair, changes: Mapping[str, Change] | None) -> Row:
    if changes is not None:
        compiled = changes[COMPILED.name]
        return Row(pair, compiled.verdict, compiled.reason, changes, _why_the_speedup_moved(changes))
    if reason := _why_lost(pair):
        return Row(pair, "UNRESOLVED", reason)
    if pair.both is None:
        side = pair.any
        return Row(pair, "NEW" if pair.base is None else "GONE", None if side.status == "ok" else side.status)
    base, head = pair.both
    if head.status == "ok":
        verdict = "UNRESOLVED" if base.status == "interrupted" else "FIXED"
        return Row(pair, verdict, f"{base.status} in BASE")
    if base.status == "ok":
        verdict = "UNRESOLVED" if head.status in NOT_RUN else "BROKE"
        return Row(pair, verdict, f"{_where(head)} in HEAD")
    same = base.status == head.status
    return Row(
        pair, "UNRESOLVED", f"{head.status} in both" if same else f"{base.status} in BASE, {head.status} in HEAD"
    )


def _where(side: Side) -> str:
    return f"{side.status} while {side.phase}" if side.phase else side.status


def _why_lost(pair: Pair) -> str | None:
    """Which sides have no record that can be read; None where each that is there has one."""
    sides = (("BASE", pair.base), ("HEAD", pair.head))
    return ", ".join(REASONS[side.status].format(name) for name, side in sides if side and side.lost) or None


def _why_the_speedup_moved(changes: Mapping[str, Change]) -> str | None:
    """Said where most of it is eager's doing and the compiled step was not found to have done the same."""
    eager, compiled, speedup = (changes[item.name] for item in (EAGER, COMPILED, SPEEDUP))
    if not eager.estimate or not speedup.estimate:
        return None
    by_eager = eager.estimate.log / speedup.estimate.log if speedup.found else 0.0
    if by_eager < 1 / 2:
        return None
    shift = percent(eager.estimate.log)
    if speedup.verdict == "LOWER" and compiled.verdict != "SLOWER":
        return f"the speedup fell because eager got faster ({shift})"
    if speedup.verdict == "HIGHER" and compiled.verdict != "FASTER":
        return f"the speedup rose because eager got slower ({shift})"
    return None


def percent(log: float | None) -> str:
    """A log ratio as a signed change, e.g. `+3.1 %`."""
    return "" if log is None else f"{100 * math.expm1(log):+.1f} %"
