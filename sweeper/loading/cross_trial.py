"""What only other trials can tell of a trial: whether eager held still, and how it compares with
the strongest eager.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from sweeper.analysis.margins import find_margin
from sweeper.analysis.stats import difference
from sweeper.core.trial import OF_COMPILING

from .entries import Entry, OverStrongest
from .ladder import find_ladders


def add_cross_trial_findings(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Add `eager_moved` and speedups over the strongest eager where they apply."""
    groups: dict[Hashable, dict[Entry, float]] = defaultdict(dict)
    for entry in entries:
        if entry.result.eager_step:
            step = entry.trial.key_without("batch_size", *OF_COMPILING)
            key = entry.sweep, entry.record.batch_size, step
            groups[key][entry] = entry.result.eager_step.ratio
    moved: set[Entry] = set()
    for group in groups.values():
        spread = max(group.values()) / min(group.values()) - 1
        if spread > find_margin(next(iter(group)).trial.device).eager:
            moved.update(group)
    over_strongest = {}
    for ladder in find_ladders(entries):
        strongest = ladder.strongest
        for entry in ladder.compiled:
            time = entry.result.compiled_step
            if strongest and strongest.time and time and not entry.record.smaller_batch_size:
                speedup = difference(strongest.time, time)
                over_strongest[entry] = OverStrongest(strongest.title, speedup)
    found = []
    for entry in entries:
        flags = entry.flags
        if entry in moved:
            flags = tuple(sorted({*flags, "eager_moved"}))
        found.append(replace(entry, flags=flags, over_strongest=over_strongest.get(entry)))
    return tuple(found)
