"""Model points: what summary.csv takes its means over, a model at a batch size with its trials in
the weighted precisions.

Trials with mode=eager, of a feature of an ablation, or in a precision without a weight, are in no
model point.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.result import Result
from sweeper.analysis.stats import ratio_of
from sweeper.core.trial import Precision
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import count

from .candidates import find_doubts
from .trials import rank_mode

NamedPrecision = tuple[str, Precision]


class GroupKey(NamedTuple):
    """What a row of the summary holds fixed, beside the family."""

    workload: str
    mode: str
    backend: str | None
    variant: str

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(filter(None, self))

    def __str__(self) -> str:
        return ", ".join(self.parts)


Row = tuple[GroupKey, str]  # and the weight that a trial carries under the key


@dataclass(frozen=True)
class ModelPoint:
    """A model at a batch size under one key; `entries` maps each weight to the trial that carries
    it, one at least.
    """

    key: GroupKey
    entries: Mapping[str, Entry]

    @property
    def first(self) -> Entry:
        return next(iter(self.entries.values()))

    @property
    def name(self) -> str:
        trial = self.first.trial
        return f"{trial.labels.model} (batch {trial.batch_size})"

    @property
    def suite(self) -> str:
        return self.first.trial.labels.suite or ""

    @property
    def judged(self) -> bool:
        """Whether nothing but the compiler can be to blame for a failure."""
        return all(entry.record.judges_the_compiler for entry in self.entries.values())

    @cached_property
    def verified(self) -> Mapping[str, Result]:
        """The results by weight of trials that are ok and whose results were judged; any other
        trial is in no mean.
        """
        results = {}
        for weight, entry in self.entries.items():
            if entry.is_ok and UNVERIFIED not in entry.flags:
                results[weight] = entry.result
        return results

    @property
    def has_unverified(self) -> bool:
        """Whether a trial is ok, but its result could not be judged."""
        return any(
            one.is_ok and weight not in self.verified for weight, one in self.entries.items()
        )

    def is_sure(self, weights: Iterable[str], doubts: Set[str]) -> bool:
        """Whether it was tried under each of these weights, and no trial there has one of these
        doubts.
        """
        for weight in weights:
            entry = self.entries.get(weight)
            if entry is None or not doubts.isdisjoint(find_doubts(entry)):
                return False
        return True

    def speedup_or_one(self, weight: str) -> float | None:
        """Return the speedup under `weight`; 1.0 where the trial failed.

        None where it was not tried, and where the trial is ok but not verified: it may be either of
        the two.
        """
        if weight in self.verified:
            return ratio_of(self.verified[weight].speedup)
        if weight not in self.entries or self.entries[weight].is_ok:
            return None
        return 1.0


@dataclass(frozen=True)
class ModelPoints:
    """`notes` say which records were set aside because another one stands for the same point."""

    points: tuple[ModelPoint, ...]
    notes: tuple[str, ...]


def collect(entries: Iterable[Entry]) -> ModelPoints:
    """Put the trials of each model together, points in order of key and then of first appearance.

    A model is what is built (its axes), not what it is called. Where a point has two records in one
    precision, one that got its batch size as asked goes before one that backed off to it, then the
    later one. No mean mixes precisions: of several that carry one weight under a key, the one with
    the most trials counts.
    """
    weighted: list[tuple[Row, NamedPrecision, Entry]] = []
    counts: dict[Row, Counter[NamedPrecision]] = defaultdict(Counter)
    for entry in filter(has_weight, entries):
        trial = entry.trial
        key = GroupKey(trial.workload, trial.mode, trial.backend, entry.variant)
        row, precision = (key, trial.labels.weight or ""), (trial.labels.precision, trial.precision)
        weighted.append((row, precision, entry))
        counts[row][precision] += 1
    chosen, notes = _choose_precisions(counts)
    slots: dict[tuple[GroupKey, Hashable], dict[str, Entry]] = defaultdict(dict)
    aside: Counter[tuple[str, str]] = Counter()
    for row, precision, entry in weighted:
        if precision != chosen[row]:
            continue
        key, weight = row
        slot = slots[key, (entry.trial.model.key, entry.trial.batch_size)]
        kept, other = entry, slot.get(weight)
        if other is not None:
            if "smaller_batch" in entry.flags and "smaller_batch" not in other.flags:
                kept, other = other, entry
            aside[other.sweep.name, kept.sweep.name] += 1
        slot[weight] = kept
    set_aside = []
    for (one, kept_of), number in aside.items():
        line = f"{count(number, 'trial')} of {one} not in the summary: {kept_of} has the same"
        if one != kept_of:
            line += f"; to compare: python -m sweeper.compare {one} {kept_of}"
        set_aside.append(line)
    points = [ModelPoint(key, slot) for (key, _), slot in slots.items()]
    return ModelPoints(tuple(sorted(points, key=_order)), (*set_aside, *notes))


def has_weight(entry: Entry) -> bool:
    """Whether a trial can be in a mean."""
    trial = entry.trial
    is_left_out = trial.mode == "eager" or trial.labels.feature
    return bool(trial.labels.weight) and not is_left_out


def _choose_precisions(
    counts: Mapping[Row, Counter[NamedPrecision]],
) -> tuple[Mapping[Row, NamedPrecision], list[str]]:
    """Choose one precision for each row: the one with the most trials, then the first. Lines tell
    of the others.
    """
    chosen = {}
    lines = []
    for (key, weight), found in counts.items():
        (kept, _), *others = found.most_common()
        chosen[key, weight] = kept
        for (name, _), number in others:
            carrier = f"precision={kept[0]}"
            if kept[0] == name:
                carrier = f"another setting of precision={name}"
            lines.append(
                f"{key}: {count(number, 'trial')} in precision={name} not in the summary: "
                f"{carrier} carries the weight {weight}, which only one precision can have; make "
                "two sweeps of them and report each alone"
            )
    return chosen, lines


def _order(point: ModelPoint) -> tuple[str, int, str, str]:
    key = point.key
    return key.workload, rank_mode(key.mode), key.backend or "", key.variant
