"""What only other trials can tell of a trial: whether eager held still, and the moderated interval of its speedup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.analysis.stats import Interval, moderate_variances
from sweeper.loading.entries import Entry

# The share by which the eager step times of one model may differ, by type of device: a CPU's clock wobbles.
MAX_EAGER_SPREAD = {"cuda": 0.01, "cpu": 0.10}
TRIALS_TO_MODERATE = 8  # with fewer, their variances say little of each other


def add_cross_trial_findings(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Add the flag `eager_moved` and the moderated interval to the entries that they apply to."""
    groups, intervals = _group(entries, _eager_step), moderate_intervals(entries)
    moved = {entry for group in groups if disagree(group) for entry in group if entry.result.eager_step_s}
    return tuple(
        replace(
            entry,
            flags=tuple(sorted({*entry.flags, "eager_moved"})) if entry in moved else entry.flags,
            moderated=intervals.get(entry),
        )
        for entry in entries
    )


def disagree(group: Sequence[Entry]) -> bool:
    """Say whether trials that time the same eager step found different times."""
    times_s = [entry.result.eager_step_s for entry in group if entry.result.eager_step_s]
    return len(times_s) > 1 and max(times_s) / min(times_s) - 1 > max_eager_spread(group[0].record.trial.device)


def max_eager_spread(device: str) -> float:
    """Return the share by which times of one eager step may differ on a type of device."""
    return MAX_EAGER_SPREAD.get(device, MAX_EAGER_SPREAD["cuda"])


def moderate_intervals(entries: Iterable[Entry]) -> Mapping[Entry, Interval]:
    """Compute moderated t intervals of speedups, pooled over trials whose variances have one cause."""
    with_interval = [entry for entry in entries if entry.result.interval != "none"]
    intervals: dict[Entry, Interval] = {}
    for members in _group(with_interval, _cause_of_variance):
        if len(members) >= TRIALS_TO_MODERATE:
            estimates = moderate_variances([entry.result.estimate for entry in members if entry.result.estimate])
            for entry, estimate in zip(members, estimates, strict=True):
                if bounds := estimate.interval():
                    intervals[entry] = bounds
    return intervals


def _group(entries: Iterable[Entry], key: Callable[[Entry], Hashable]) -> list[list[Entry]]:
    groups: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return list(groups.values())


def _eager_step(entry: Entry) -> Hashable:
    """The sweep, and what decides how long an eager step takes: mode and backend do not."""
    trial = entry.record.trial
    axes = trial.model.key, trial.precision, trial.workload, entry.record.batch_size, trial.optimizer, trial.device
    return entry.folder.parent, *axes


def _cause_of_variance(entry: Entry) -> Hashable:
    """Host noise differs from other noise, draws from processes, and a CPU from a GPU."""
    return entry.result.host_bound_arms is not None, entry.result.interval, entry.record.trial.device
