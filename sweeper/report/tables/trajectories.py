"""Whether a script's model trains compiled as it trains in eager, in words; `scripts` has the
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sweeper.core.record import ARMS, Training, Trajectory
from sweeper.core.serialization import Json
from sweeper.report.formatting import figure

SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
KINDS = {
    "typical": "or more in half of the steps",
    "often": "or more in one of twenty steps",
    "worst": "in one step",
    "drift": "on average, always in one direction",
    "gain": "in length on average",
}
LEAST = 1e-5  # share that is told from nothing
LAST = 3  # points of a loss curve, whose mean is the loss at its end


def name_verdict(trajectory: Trajectory | None) -> str | None:
    """`same`, `differs` or `unknown`; None where nobody asked."""
    if trajectory is None:
        return None
    return UNKNOWN if trajectory.passed is None else SAME if trajectory.passed else DIFFERS


def describe(trajectory: Trajectory | None, asked: Json = None) -> Iterator[str]:
    """Say whether it trains alike, and where its trainings went; `asked` is how many steps were to
    be compared.
    """
    if trajectory is None:
        return
    steps = f"{trajectory.steps:,}"
    if isinstance(asked, int) and trajectory.steps < asked:
        steps += f" of {asked:,}"
    if trajectory.passed is None:
        yield f"whether it trains as in eager is not known: {trajectory.unknown}"
    elif trajectory.passed:
        yield f"it trains as in eager: no fault was found in {steps} steps"
    else:
        yield f"it does not train as in eager: {_describe_difference(trajectory)}, in {steps} steps"
    yield from _describe_trainings(trajectory.trainings)
    if trajectory.trainings_missing:
        yield f"not all trainings were run: {trajectory.trainings_missing}"


def _describe_difference(trajectory: Trajectory) -> str:
    how = KINDS.get(str(trajectory.kind), "")
    if trajectory.value is None or trajectory.limit is None:
        return f"the compiled {trajectory.worst} is not finite {how}"
    whose = "eager" if trajectory.reference == "eager" else "eager without autocast"
    off = f"differs from that of {whose} by {_percent(trajectory.value)} {how}"
    return f"the compiled {trajectory.worst} {off} (the limit is {_percent(trajectory.limit)})"


def _describe_trainings(trainings: Sequence[Training]) -> Iterator[str]:
    """Say where losses ended in each arm, and how far apart the weights did."""
    if trainings and not all(training.seeded for training in trainings):
        yield "trainings of both arms cannot be compared: the script never calls torch.manual_seed"
        return
    ends = {
        arm: _list_ends(training for training in trainings if training.arm == arm) for arm in ARMS
    }
    if all(ends.values()):
        spans = ", ".join(f"{arm} {_span(ends[arm])}" for arm in ARMS)
        seeds = len(ends[ARMS[0]])
        yield (
            f"loss after {trainings[0].steps:,} steps, with {seeds} "
            f"seed{'' if seeds == 1 else 's'}: {spans}"
        )
    apart = [last for one in trainings if one.apart and (last := one.apart[-1]) is not None]
    if apart:
        yield f"weights of one seed end {_percent(max(apart))} of their way apart"


def _list_ends(trainings: Iterable[Training]) -> list[float]:
    return [loss for training in trainings if (loss := _find_last_loss(training)) is not None]


def _find_last_loss(training: Training) -> float | None:
    """The mean of the last points of a loss curve."""
    last = [loss for loss in training.losses[-LAST:] if loss is not None]
    return sum(last) / len(last) if last else None


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %" if share >= LEAST else f"less than {100 * LEAST:g} %"
