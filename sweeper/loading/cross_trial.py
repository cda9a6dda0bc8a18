"""What only a look at other trials can tell of a trial: whether eager held still, and the moderated t.

Place in the flow: `load` reads entries one by one, `compared` puts these findings on them, then tables are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.analysis.stats import Interval, moderate_variances
from sweeper.loading.entries import Entry

# How far the eager step times of one model may lie apart, by type of device: a CPU's clock wobbles.
EAGER_AGREES = {"cuda": 0.01, "cpu": 0.10}
TRIALS_TO_MODERATE = 8  # with fewer, their variances say little of each other


def compared(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries with the flag `eager_moved` and the moderated interval where they apply."""
    moved, intervals = eager_moved(entries), moderated_intervals(entries)
    return tuple(
        replace(
            entry,
            flags=tuple(sorted({*entry.flags, "eager_moved"})) if entry in moved else entry.flags,
            moderated=intervals.get(entry),
        )
        for entry in entries
    )


def eager_moved(entries: Iterable[Entry]) -> set[Entry]:
    """Trials of one sweep that time the same eager step and do not agree on it; modes and backends do not matter."""
    groups: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[_eager_step(entry)].append(entry)
    return {entry for group in groups.values() if disagree(group) for entry in group if entry.result.eager_step_s}


def _eager_step(entry: Entry) -> Hashable:
    """What decides how long an eager step takes, and the folder of the sweep."""
    trial = entry.record.trial
    axes = trial.model.key, trial.precision, trial.workload, entry.record.batch_size, trial.optimizer, trial.device
    return entry.folder.parent, *axes


def disagree(group: Sequence[Entry]) -> bool:
    """Whether trials that time the same eager step found different times."""
    times_s = [entry.result.eager_step_s for entry in group if entry.result.eager_step_s]
    return len(times_s) > 1 and max(times_s) / min(times_s) - 1 > eager_agrees(group[0].record.trial.device)


def eager_agrees(device: str) -> float:
    """The share within which eager step times on a type of device are the same."""
    return EAGER_AGREES.get(device, EAGER_AGREES["cuda"])


def moderated_intervals(entries: Iterable[Entry]) -> Mapping[Entry, Interval]:
    """Moderated t intervals of speedups, pooled over trials whose variances have one cause."""
    classes: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.result.interval != "none":
            classes[_class(entry)].append(entry)
    found: dict[Entry, Interval] = {}
    for members in classes.values():
        if len(members) >= TRIALS_TO_MODERATE:
            estimates = moderate_variances([entry.result.estimate for entry in members if entry.result.estimate])
            found |= {
                entry: bounds for entry, item in zip(members, estimates, strict=True) if (bounds := item.interval())
            }
    return found


def _class(entry: Entry) -> Hashable:
    """Host noise is another population than the rest; so are draws beside processes, and a CPU beside a GPU."""
    return entry.result.host_bound_arms is not None, entry.result.interval, entry.record.trial.device
