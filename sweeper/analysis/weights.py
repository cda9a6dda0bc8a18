"""Which precisions carry which weight in the means."""

from __future__ import annotations

from collections.abc import Iterable

from sweeper.core.errors import ConfigError
from sweeper.core.trial import Trial


def check_weights(trials: Iterable[Trial]) -> None:
    """One weight is one precision option with one meaning in a row of the summary, or its mean would mix formats.

    Raises ConfigError otherwise.
    """
    first: dict[tuple[str | None, ...], Trial] = {}
    for trial in trials:
        if trial.labels.weight is None or trial.mode == "eager":
            continue
        row = (trial.device, trial.workload, trial.mode, trial.backend, trial.variant, trial.labels.weight)
        other = first.setdefault(row, trial)
        if trial.labels.precision != other.labels.precision:
            which = f"precision={other.labels.precision} and precision={trial.labels.precision}"
        elif trial.precision != other.precision:
            which = f"two settings of precision={trial.labels.precision}"
        else:
            continue
        raise ConfigError(
            f"{which} both carry the weight {trial.labels.weight}, which only one of them can have: make two sweeps of "
            "them and report each alone, or run one with precision.weight=null"
        )
