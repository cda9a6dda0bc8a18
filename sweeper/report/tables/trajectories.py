"""Whether a script's model trains compiled as it trains in eager, in words; `scripts` has the table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sweeper.core.record import ARMS, Training, Trajectory
from sweeper.report.formatting import figure

SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
KINDS = {
    "typical": "in half of the steps",
    "worst": "in one of the steps",
    "drift": "on average, always in one direction",
    "gain": "in length on average",
}
LAST = 3  # points of a loss curve, whose mean is the loss at its end


def name_verdict(trajectory: Trajectory | None) -> str | None:
    """`same`, `differs` or `unknown`; None where nobody asked."""
    if trajectory is None:
        return None
    return UNKNOWN if trajectory.passed is None else SAME if trajectory.passed else DIFFERS


def describe(trajectory: Trajectory | None) -> Iterator[str]:
    """Say whether it trains alike, and where its trainings went."""
    if trajectory is None:
        return
    if trajectory.passed is None:
        yield f"whether it trains as in eager is not known: {trajectory.unknown}"
    elif trajectory.passed:
        yield f"it trains as in eager: over {trajectory.steps} steps nothing differs by more than rounding explains"
    else:
        yield f"it does not train as in eager: {_describe_difference(trajectory)}"
    yield from _describe_trainings(trajectory.trainings)
    if trajectory.trainings_missing:
        yield f"trainings by other seeds are missing: {trajectory.trainings_missing}"


def _describe_difference(trajectory: Trajectory) -> str:
    how = KINDS.get(str(trajectory.kind), "")
    if trajectory.value is None or trajectory.limit is None:
        return f"the compiled {trajectory.worst} is not finite {how}"
    whose = "eager" if trajectory.reference == "eager" else "eager without autocast"
    off = f"differs from that of {whose} by {_percent(trajectory.value)} or more {how}"
    return f"the compiled {trajectory.worst} {off}, where rounding explains {_percent(trajectory.limit)}"


def _describe_trainings(trainings: tuple[Training, ...]) -> Iterator[str]:
    """Say where losses ended in each arm, and how far apart the weights did."""
    by_arm = groupby(sorted(trainings, key=lambda one: ARMS.index(one.arm)), lambda one: one.arm)
    ends = {arm: [loss for one in group if (loss := _find_last_loss(one)) is not None] for arm, group in by_arm}
    if trainings and all(ends.get(arm) for arm in ARMS):
        spans = ", ".join(f"{arm} {_span(ends[arm])}" for arm in ARMS)
        seeds = len(ends[ARMS[0]])
        yield f"loss after {trainings[0].steps} steps, with {seeds} seed{'' if seeds == 1 else 's'}: {spans}"
    drifts = [last for one in trainings if one.drift and (last := one.drift[-1]) is not None]
    if drifts:
        yield f"weights of one seed end {_percent(max(drifts))} of their way apart"


def _find_last_loss(training: Training) -> float | None:
    """The mean of the last points of a loss curve."""
    last = [loss for loss in training.losses[-LAST:] if loss is not None]
    return sum(last) / len(last) if last else None


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %"
