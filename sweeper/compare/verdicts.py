"""Verdicts: whether a difference between two sides is a change, is none, or cannot be told.

Values in, values out. The row's verdict is about the compiled step alone, since a speedup also
falls when eager gets faster: by wall clock, and by device time where that alone shows a regression.
Where no test finds a change of the step, its size may decide (`unsampled`). The rules and what they
miss: docs/decisions/what-is-a-regression.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sweeper.analysis import stats
from sweeper.analysis.derive import MIN_DRAWS_FOR_INTERVAL, MIN_PROCESSES_IF_HOST_BOUND
from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.stats import CONFIDENCE, Estimate
from sweeper.compare.pairs import LOST, Pair, Side
from sweeper.compare.quantities import (
    COMPILE,
    COMPILED,
    COMPILED_DEVICE,
    EAGER,
    QUANTITIES,
    SPEEDUP,
    STEP_TIMES,
    Quantity,
)
from sweeper.compare.unsampled import count_fewest, find_unsampled_logs, is_host_bound
from sweeper.loading.cross_trial import max_eager_spread

SIGNIFICANCE = 1 - CONFIDENCE
# Backends that generate no code and autotune no kernels, so that all draws are alike.
WITHOUT_AUTOTUNING = ("eager", "aot_eager", "cudagraphs")
NOT_RUN = ("unavailable", "interrupted")
MIN_PROCESSES_TO_MODERATE = 3  # of a side

# in the order of the tables
VERDICTS = ("SLOWER", "BROKE", "FASTER", "FIXED", "UNRESOLVED", "NEW", "GONE", "SAME")
REGRESSIONS = ("SLOWER", "BROKE")


@dataclass(frozen=True)
class Change:
    """One quantity of a pair. `estimate` is of the log of HEAD / BASE, None where a side has no
    figure.
    """

    verdict: str  # empty while it is still to be judged
    reason: str | None = None  # why it is UNRESOLVED, or its size is uncertain
    base: float | None = None  # geometric means, as in the tables
    head: float | None = None
    unit: str | None = None  # processes or draws: what the test is over
    estimate: Estimate | None = None
    adjusted_p: float | None = None  # of the difference, for the number of rows and of clocks

    @property
    def log(self) -> float:
        """The log of HEAD / BASE of a change that has an estimate."""
        assert self.estimate is not None
        return self.estimate.log


@dataclass(frozen=True)
class Row:
    """A pair with its verdict; `changes` by name of quantity, None where a side was not
    measured.
    """

    pair: Pair
    verdict: str
    reason: str | None = None
    changes: Mapping[str, Change] | None = None
    note: str | None = None


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
    max_shift: float = max_eager_spread("cuda")

    @property
    def moved(self) -> bool:
        """Whether eager moved so far that no time by this clock is tested."""
        return self.shift is not None and abs(self.shift) > math.log1p(self.max_shift)


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of the pairs, and a control for each clock by the name of eager's
    quantity.
    """

    rows: tuple[Row, ...]
    controls: Mapping[str, Control]

    @property
    def control(self) -> Control:
        """The control by wall clock."""
        return self.controls[EAGER.name]

    @property
    def regressed(self) -> bool:
        return any(row.verdict in REGRESSIONS for row in self.rows)

    @property
    def unresolved(self) -> int:
        """How many rows are UNRESOLVED although both sides were measured."""
        return sum(row.verdict == "UNRESOLVED" and row.pair.ok for row in self.rows)


def judge(pairs: Sequence[Pair], min_effect: float | None = None) -> Comparison:
    """Judge every quantity of every pair, then every pair. Without `min_effect` each quantity has
    its own.
    """
    measured = [pair for pair in pairs if pair.ok]
    raw = {
        quantity.name: [compare_quantity(pair, quantity) for pair in measured]
        for quantity in QUANTITIES
    }
    controls = {
        quantity.name: _measure_control(measured, raw[quantity.name], quantity)
        for quantity in QUANTITIES
        if quantity.control == quantity.name
    }
    clocks = _count_clocks(raw, controls)
    judged = {
        quantity.name: judge_quantity(
            quantity,
            measured,
            raw[quantity.name],
            controls.get(quantity.control),
            min_effect,
            clocks if quantity in STEP_TIMES else 1,
        )
        for quantity in QUANTITIES
    }
    for quantity in STEP_TIMES:
        control = controls[quantity.control]
        places = zip(measured, judged[quantity.name], raw[quantity.control], strict=True)
        judged[quantity.name] = [
            judge_by_size(quantity, *place, control, min_effect) for place in places
        ]
    changes = (
        dict(zip(judged, of_pair, strict=True)) for of_pair in zip(*judged.values(), strict=True)
    )
    return Comparison(
        tuple(_judge_pair(pair, next(changes) if pair.ok else None) for pair in pairs), controls
    )


def _count_clocks(raw: Mapping[str, Sequence[Change]], controls: Mapping[str, Control]) -> int:
    """Count the clocks by which the step of any row is tested, since the false alarms of both add
    up.
    """
    wall, device = (
        not controls[quantity.control].moved
        and any(not change.verdict for change in raw[quantity.name])
        for quantity in STEP_TIMES
    )
    return max(1, wall + device)


def _measure_control(pairs: Sequence[Pair], eager: Sequence[Change], quantity: Quantity) -> Control:
    """Measure how far a time of eager moved, from the rows whose host does not spoil it where there
    are any.
    """
    known = [
        (pair, change.log) for pair, change in zip(pairs, eager, strict=True) if change.estimate
    ]
    calm = [log for pair, log in known if pair.both and not is_host_bound(pair.both, quantity)]
    shifts = calm or [log for _, log in known]
    limits = [max_eager_spread(side.trial.device) for pair, _ in known for side in pair.both or ()]
    limit = min(limits, default=max_eager_spread("cuda"))
    return Control(median(shifts) if shifts else None, len(shifts), limit)


def compare_quantity(pair: Pair, quantity: Quantity) -> Change:
    """The difference of two measured sides, with the reason where it cannot be judged."""
    assert pair.both is not None
    samples = [side.samples.get(quantity.name, ()) for side in pair.both]
    if not all(samples):
        return Change("UNRESOLVED", "not measured on a side")
    draws = all(
        len({sample.draw for sample in of_side}) >= MIN_DRAWS_FOR_INTERVAL for of_side in samples
    )
    logs = (
        stats.group_by_draw((sample.draw, math.log(sample.value)) for sample in of_side)
        for of_side in samples
    )
    base, head = (stats.mean_over_draws(of_side, draws) for of_side in logs)
    unlike = explain_incomparable(pair.both, quantity)
    reason = unlike or explain_unjudged(pair.both, quantity, draws)
    unit, estimate = (
        "draws" if draws else "processes",
        None if unlike else stats.difference(head, base),
    )
    return Change("UNRESOLVED" if reason else "", reason, base.ratio, head.ratio, unit, estimate)


def explain_incomparable(sides: tuple[Side, Side], quantity: Quantity) -> str | None:
    """Explain why two figures cannot be compared, not even as a ratio; None where they can be
    compared.
    """
    base, head = sides
    if base.batch_size != head.batch_size:
        return f"out of memory: batch {base.batch_size} in BASE, {head.batch_size} in HEAD"
    if base.clock != head.clock and quantity in (EAGER, COMPILED, SPEEDUP):
        return f"measure.clock={base.clock} in BASE, {head.clock} in HEAD"
    return None


def explain_unjudged(sides: tuple[Side, Side], quantity: Quantity, over_draws: bool) -> str | None:
    """Why the samples of two sides allow no verdict, whatever they say; None where they allow
    one.
    """
    fewest = count_fewest(sides, quantity)
    if fewest < 2:
        return (
            "one cold compile on a side"
            if quantity is COMPILE
            else "a single process on a side: no variance"
        )
    if quantity is COMPILE and any("compile_contended" in side.flags for side in sides):
        return "others kept the processor busy while it compiled (compile_contended)"
    if fewest < MIN_PROCESSES_IF_HOST_BOUND and is_host_bound(sides, quantity):
        return f"host-bound, with fewer than {MIN_PROCESSES_IF_HOST_BOUND} processes on a side"
    if quantity.of_artifact and not over_draws and not _same_artifact(sides):
        return (
            f"fewer than {MIN_DRAWS_FOR_INTERVAL} draws on a side, and compiled code or "
            "autotuning may differ"
        )
    return None


def _same_artifact(sides: tuple[Side, Side]) -> bool:
    """Whether all processes of both sides ran one compiled program, so that autotuning cannot
    differ between them.
    """
    if all(
        side.trial.mode == "eager" or side.trial.backend in WITHOUT_AUTOTUNING for side in sides
    ):
        return True
    artifacts = sides[0].artifacts | sides[1].artifacts
    return len(artifacts) == 1 and None not in artifacts


def judge_quantity(
    quantity: Quantity,
    pairs: Sequence[Pair],
    changes: Sequence[Change],
    control: Control | None,
    min_effect: float | None,
    clocks: int = 1,
) -> list[Change]:
    """Test one quantity of all measured pairs; a time has a `control`.

    p values are multiplied by the number of `clocks` that decide about a row (Bonferroni).
    """
    if control and control.moved:
        reason = f"eager itself moved by {percent(control.shift)} (median over rows)"
        return [
            item if item.verdict else replace(item, verdict="UNRESOLVED", reason=reason)
            for item in changes
        ]
    judged = _moderate(quantity, pairs, changes) if quantity.pooled else list(changes)
    shift = control.shift or 0.0 if control else 0.0
    places = [place for place, item in enumerate(judged) if not item.verdict]
    tests = [_subtract_shift(judged[place].estimate, shift) for place in places]
    adjusted = stats.benjamini_hochberg(
        [p for test in tests if (p := stats.p_value(test)) is not None]
    )
    for place, test, p in zip(places, tests, adjusted, strict=True):
        change = replace(judged[place], adjusted_p=min(1.0, clocks * p))
        judged[place] = _judge_change(quantity, change, test, shift, min_effect)
    return judged


def _moderate(quantity: Quantity, pairs: Sequence[Pair], changes: Sequence[Change]) -> list[Change]:
    """Draw variances over processes towards those of similar rows, where there are enough of them.

    Host-bound rows are pooled only with each other. Variances over draws are not moderated: how
    much autotuning varies differs from model to model, and moderating would flag up to 17 % of
    simulated sweeps. Neither are variances of two processes: where models differ in noise,
    moderating would flag half of the sweeps.
    """
    over_processes = (
        (place, any(side.host_bound_arms is not None for side in pair.both or ()), change.estimate)
        for place, (pair, change) in enumerate(zip(pairs, changes, strict=True))
        if not change.verdict and change.unit == "processes" and change.estimate
        if count_fewest(pair.both or (), quantity) >= MIN_PROCESSES_TO_MODERATE
    )
    found = stats.moderate_groups(over_processes)
    return [
        replace(change, estimate=found.get(place, change.estimate))
        for place, change in enumerate(changes)
    ]


def _subtract_shift(estimate: Estimate | None, shift: float) -> Estimate:
    """The difference with or without the session's shift, whichever is nearer to 0."""
    assert estimate is not None
    return replace(estimate, log=_nearest_to_0(estimate.log, estimate.log - shift))


def _nearest_to_0(*logs: float) -> float:
    """The smallest of several changes; 0 where their signs differ."""
    return 0.0 if min(logs) <= 0 <= max(logs) else min(logs, key=abs)


def _find_margin(quantity: Quantity, change: Change, min_effect: float | None) -> float:
    """The log of the smallest change that counts."""
    assert change.base is not None
    return math.log1p(
        max(quantity.min_effect if min_effect is None else min_effect, quantity.floor / change.base)
    )


def _judge_change(
    quantity: Quantity, change: Change, test: Estimate, shift: float, min_effect: float | None
) -> Change:
    """A change needs significance and size, with and without the shift; SAME needs a test of its
    own.
    """
    margin = _find_margin(quantity, change, min_effect)
    if (
        change.adjusted_p is not None
        and change.adjusted_p <= SIGNIFICANCE
        and abs(test.log) >= margin
    ):
        return replace(
            change, verdict=quantity.verdicts[0] if test.log > 0 else quantity.verdicts[1]
        )
    furthest = max(abs(change.log), abs(change.log - shift))
    equal_p = stats.equivalence_p_value(replace(test, log=furthest), margin)
    if equal_p is not None and equal_p <= SIGNIFICANCE:
        return replace(change, verdict="SAME")
    reason = f"shown is neither a change nor equality within {math.expm1(margin):.0%}"
    return replace(change, verdict="UNRESOLVED", reason=reason)


def judge_by_size(
    quantity: Quantity,
    pair: Pair,
    change: Change,
    eager: Change,
    control: Control,
    min_effect: float | None,
) -> Change:
    """Judge a step time that no test could judge, by whether it changed by more than what was not
    sampled explains.

    The change must hold as measured, without the session's shift, and beside the eager arm of its
    own trial, which took turns with it. Beyond what was not sampled it must exceed what its own
    processes (or draws) show as noise.
    """
    if change.verdict != "UNRESOLVED" or change.estimate is None:
        return change
    assert pair.both is not None
    beside_eager = [change.log - eager.log] if eager.estimate else []
    least = _nearest_to_0(change.log, change.log - (control.shift or 0.0), *beside_eager)
    draws, host = find_unsampled_logs(pair.both, quantity, control.moved)
    limit = max(
        _find_margin(quantity, change, min_effect),
        draws + max(host, change.estimate.half_width() or 0.0),
    )
    if abs(least) <= limit:
        return change
    reason = (
        "not significant once all rows and clocks count"
        if change.adjusted_p is not None
        else change.reason
    )
    return replace(
        change, verdict=quantity.verdicts[least < 0], reason=f"size uncertain ({reason})"
    )


def _judge_pair(pair: Pair, changes: Mapping[str, Change] | None) -> Row:
    if changes is not None:
        verdict, reason, device_note = _judge_step(
            changes[COMPILED.name], changes[COMPILED_DEVICE.name]
        )
        notes = (device_note, _explain_speedup(changes), _name_unverified(pair))
        return Row(pair, verdict, reason, changes, "; ".join(filter(None, notes)) or None)
    sides = (("BASE", pair.base), ("HEAD", pair.head))
    lost = [LOST[side.status].format(name) for name, side in sides if side and side.lost]
    if lost:
        return Row(pair, "UNRESOLVED", ", ".join(lost))
    if pair.both is None:
        status = pair.any.status
        return Row(pair, "NEW" if pair.base is None else "GONE", None if status == "ok" else status)
    base, head = pair.both
    if head.status == "ok":
        reason = f"{base.status} in BASE"
        if UNVERIFIED in head.flags:
            return Row(pair, "UNRESOLVED", f"{reason}, ok but not verified in HEAD ({UNVERIFIED})")
        return Row(pair, "UNRESOLVED" if base.status == "interrupted" else "FIXED", reason)
    if base.status == "ok":
        phase = f" while {head.phase}" if head.phase else ""
        return Row(
            pair,
            "UNRESOLVED" if head.status in NOT_RUN else "BROKE",
            f"{head.status}{phase} in HEAD",
        )
    both = (
        f"{base.status} in BASE, {head.status} in HEAD"
        if base.status != head.status
        else f"{head.status} in both"
    )
    return Row(pair, "UNRESOLVED", both)


def _judge_step(wall: Change, device: Change) -> tuple[str, str | None, str | None]:
    """Return verdict, reason and note of the compiled step; a slower device decides where wall
    clock shows no change.

    A faster device does not: the host may have become slower.
    """
    if device.verdict != "SLOWER" or wall.verdict == "SLOWER":
        return wall.verdict, wall.reason, None
    if wall.verdict == "FASTER" and wall.reason is None:
        return wall.verdict, None, f"by device time it is SLOWER ({percent(device.log)})"
    why = f" ({wall.reason})" if wall.reason else ""
    size = f", {device.reason}" if device.reason else ""
    return "SLOWER", f"wall {wall.verdict}{why}, device SLOWER{size}", None


def _name_unverified(pair: Pair) -> str | None:
    """Name the side whose result is verified no more, or was not yet: its speed may be that of
    another computation.
    """
    sides = {"BASE": pair.base, "HEAD": pair.head}
    unverified = [name for name, side in sides.items() if side and UNVERIFIED in side.flags]
    return f"not verified in {unverified[0]} ({UNVERIFIED})" if len(unverified) == 1 else None


def _explain_speedup(changes: Mapping[str, Change]) -> str | None:
    """Say when the speedup changed mostly because eager did, and the compiled step was not found to
    do the same.
    """
    eager, compiled, speedup = (changes[item.name] for item in (EAGER, COMPILED, SPEEDUP))
    if (
        not eager.estimate
        or speedup.verdict not in SPEEDUP.verdicts
        or eager.log / speedup.log < 1 / 2
    ):
        return None
    rose = speedup.verdict == "HIGHER"
    if compiled.verdict == ("FASTER" if rose else "SLOWER"):
        return None
    what = "rose because eager got slower" if rose else "fell because eager got faster"
    return f"the speedup {what} ({percent(eager.log)})"


def percent(log: float | None) -> str:
    """A log ratio as a signed change, e.g. `+3.1 %`."""
    return "" if log is None else f"{100 * math.expm1(log):+.1f} %"
