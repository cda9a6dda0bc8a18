"""Whether a script's model trains compiled as it trains in eager, in words; `scripts` has the
table.
"""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.core.record import Trajectory
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


def name_verdict(trajectory: Trajectory | None) -> str | None:
    """`same`, `differs` or `unknown`; None where nobody asked."""
    if trajectory is None:
        return None
    return UNKNOWN if trajectory.passed is None else SAME if trajectory.passed else DIFFERS


def describe(trajectory: Trajectory | None, asked: Json = None) -> Iterator[str]:
    """Say whether it trains alike; `asked` is how many steps were to be compared."""
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


def _describe_difference(trajectory: Trajectory) -> str:
    how = KINDS.get(str(trajectory.kind), "")
    if trajectory.value is None or trajectory.limit is None:
        return f"the compiled {trajectory.worst} is not finite {how}"
    whose = "eager" if trajectory.reference == "eager" else "eager without autocast"
    off = f"differs from that of {whose} by {_percent(trajectory.value)} {how}"
    return f"the compiled {trajectory.worst} {off} (the limit is {_percent(trajectory.limit)})"


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %" if share >= LEAST else f"less than {100 * LEAST:g} %"
