"""Weights of precisions in the weighted mean."""

from __future__ import annotations

from collections.abc import Iterable

from sweeper.core.errors import ConfigError
from sweeper.core.trial import Trial


def check_weights(trials: Iterable[tuple[Trial, str]]) -> None:
    """Raise ConfigError where two precisions have one weight in one row of the summary, whose mean would mix them.

    With each trial comes the variant that its row has.
    """
    first: dict[tuple[str | None, ...], Trial] = {}
    for trial, variant in trials:
        name, weight = trial.labels.precision, trial.labels.weight
        if weight is None or trial.mode == "eager":
            continue
        row = (trial.device, trial.workload, trial.mode, trial.backend, variant, weight)
        other = first.setdefault(row, trial)
        if (name, trial.precision) == (other.labels.precision, other.precision):
            continue
        both = f"precision={other.labels.precision} and precision={name}"
        which = both if name != other.labels.precision else f"two settings of precision={name}"
        advice = "make two sweeps of them and report each alone, or run one with precision.weight=null"
        raise ConfigError(f"{which} both carry the weight {weight}, which only one of them can have: {advice}")
