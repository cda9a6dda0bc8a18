"""Whether a script's model trains compiled as it trains in eager, in words; `scripts` has the
table.
"""

from collections.abc import Iterator

from sweeper.core.record import Trajectory
from sweeper.core.serialization import Json
from sweeper.report.columns.formats import figure

# by whether it passed: a word for files, and what people read
VERDICTS = {
    True: ("same", "trains as in eager"),
    False: ("differs", "does not train as in eager"),
    None: ("unknown", "whether it trains as in eager is not known"),
}
KINDS = {
    "typical": "or more in half of the steps",
    "often": "or more in one of twenty steps",
    "worst": "in one step",
    "drift": "on average, always in one direction",
    "gain": "in length on average",
}
LEAST = 1e-5  # share that is told from nothing


def name_verdict(trajectory: Trajectory | None) -> str | None:
    """Return `same`, `differs` or `unknown`; None where the steps were not compared."""
    return VERDICTS[trajectory.passed][0] if trajectory else None


def say(trajectory: Trajectory | None) -> str:
    """Say the verdict in a few words; empty where the steps were not compared."""
    return VERDICTS[trajectory.passed][1] if trajectory else ""


def describe(trajectory: Trajectory | None, asked: Json = None) -> Iterator[str]:
    """Say whether it trains alike; `asked` is how many steps were to be compared."""
    if trajectory is None:
        return
    said, steps = say(trajectory), f"{trajectory.steps:,}"
    if isinstance(asked, int) and trajectory.steps < asked:
        steps += f" of {asked:,}"
    if trajectory.passed is None:
        yield f"{said}: {trajectory.unknown}"
    elif trajectory.passed:
        yield f"it {said}: no fault was found in {steps} steps"
    else:
        how = KINDS.get(trajectory.kind or "", "")
        off = f"is not finite {how}"
        if trajectory.value is not None and trajectory.limit is not None:
            whose = "eager" if trajectory.reference == "eager" else "eager without autocast"
            value, limit = _percent(trajectory.value), _percent(trajectory.limit)
            off = f"differs from that of {whose} by {value} {how} (the limit is {limit})"
        yield f"it {said}: the compiled {trajectory.worst} {off}, in {steps} steps"


def _percent(share: float) -> str:
    if share >= LEAST:
        return f"{figure(100 * share)} %"
    return f"less than {100 * LEAST:g} %"
