"""What only other trials can tell of a trial: whether eager held still, and how it compares with
the strongest eager.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from .entries import Entry, OverStrongest
from .ladder import find_ladders

# The share by which the eager step times of one model may differ, by type of device: a CPU's clock
# wobbles.
MAX_EAGER_SPREAD = {"cuda": 0.01, "cpu": 0.10}


def add_cross_trial_findings(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Add `eager_moved` and speedups over the strongest eager where they apply."""
    groups: dict[Hashable, dict[Entry, float]] = defaultdict(dict)
    for entry in entries:
        if entry.result.eager_step_s:
            groups[_eager_step(entry)][entry] = entry.result.eager_step_s
    moved: set[Entry] = set()
    for group in groups.values():
        if disagree(list(group.values()), next(iter(group)).record.trial.device):
            moved.update(group)
    over_strongest: dict[Entry, OverStrongest] = {}
    for ladder in find_ladders(entries):
        over_strongest |= ladder.find_speedups_over_strongest()
    found = []
    for entry in entries:
        flags = entry.flags
        if entry in moved:
            flags = tuple(sorted({*flags, "eager_moved"}))
        found.append(replace(entry, flags=flags, over_strongest=over_strongest.get(entry)))
    return tuple(found)


def disagree(eager_s: Sequence[float], device: str) -> bool:
    """Say whether the times that trials on a type of device found for one eager step are different
    times.
    """
    return len(eager_s) > 1 and max(eager_s) / min(eager_s) - 1 > max_eager_spread(device)


def max_eager_spread(device: str) -> float:
    """Return the share by which times of one eager step may differ on a type of device."""
    return MAX_EAGER_SPREAD.get(device, MAX_EAGER_SPREAD["cuda"])


def _eager_step(entry: Entry) -> Hashable:
    """The sweep, and what decides how long an eager step takes: mode and backend do not."""
    trial = entry.trial
    return (
        entry.folder.parent,
        trial.model.key,
        trial.precision,
        trial.workload,
        entry.record.batch_size,
        trial.text,
        trial.decode_position,
        str(trial.vary),
        trial.optimizer,
        trial.optimizer_impl,
        trial.device,
        trial.cudnn_benchmark,
    )
