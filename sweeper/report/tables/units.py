"""Units: what summary.csv takes its means over, a model at a batch size with its trials in the
weighted precisions.

Trials with mode=eager, or in a precision without a weight, are in no unit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.stats import Estimate
from sweeper.core.trial import Precision
from sweeper.loading.entries import Entry
from sweeper.report.formatting import rank_mode


def backend(entry: Entry) -> str | None:
    """Return the backend's name; None where nothing is compiled."""
    return entry.record.trial.backend if entry.record.trial.mode != "eager" else None


def is_ok(entry: Entry) -> bool:
    return entry.record.status == "ok"


def is_verified(entry: Entry) -> bool:
    """Whether a trial is ok and its result was judged; any other trial is in no mean."""
    return is_ok(entry) and UNVERIFIED not in entry.flags


@dataclass(frozen=True)
class Key:
    """What a row of the summary holds fixed, beside the family."""

    workload: str
    mode: str
    backend: str | None
    variant: str

    def __str__(self) -> str:
        return ", ".join(
            part for part in (self.workload, self.mode, self.backend, self.variant) if part
        )


@dataclass(frozen=True)
class Unit:
    """A model at a batch size under one key; `entries` maps each weight to the trial that carries
    it, one at least.
    """

    key: Key
    entries: Mapping[str, Entry]

    @property
    def name(self) -> str:
        trial = next(iter(self.entries.values())).record.trial
        return f"{trial.labels.model} (batch {trial.batch_size})"

    @property
    def family(self) -> str:
        return next(iter(self.entries.values())).record.trial.labels.family

    @property
    def judged(self) -> bool:
        """Whether nothing but the compiler can be to blame for what failed."""
        return all(entry.record.judges_the_compiler for entry in self.entries.values())

    @property
    def verified_weights(self) -> set[str]:
        return {weight for weight, entry in self.entries.items() if is_verified(entry)}

    @property
    def has_unverified(self) -> bool:
        """Whether a trial is ok, but no verdict on its result was possible."""
        return any(is_ok(entry) and not is_verified(entry) for entry in self.entries.values())

    def has_doubt(self, weights: Iterable[str], doubts: Collection[str]) -> bool:
        """Whether the trial under any of these weights, which must have been tried, has one of
        these flags.
        """
        return any(flag in doubts for weight in weights for flag in self.entries[weight].flags)

    def estimate(self, weight: str) -> Estimate | None:
        """Return the speedup under `weight`; None where the trial is not verified or was not
        tried.
        """
        return entry.result.estimate if (entry := self._find_verified(weight)) else None

    def device_estimate(self, weight: str) -> Estimate | None:
        """Return the device speedup under `weight`; None as in `estimate`, and where it is not
        known.
        """
        return entry.result.device_estimate if (entry := self._find_verified(weight)) else None

    def _find_verified(self, weight: str) -> Entry | None:
        entry = self.entries.get(weight)
        return entry if entry and is_verified(entry) else None

    def speedup_or_one(self, weight: str) -> float | None:
        """Return the speedup under `weight`, which must have been tried; 1.0 where the trial
        failed.

        None where the trial is ok but not verified: nobody knows which of the two it is.
        """
        entry = self.entries[weight]
        if is_verified(entry):
            return entry.result.speedup
        return None if is_ok(entry) else 1.0


@dataclass(frozen=True)
class Units:
    """`notes` say which records were set aside because another one stands for the same unit."""

    units: tuple[Unit, ...]
    notes: tuple[str, ...]


def collect(entries: Iterable[Entry]) -> Units:
    """Put the trials of each model together, units in order of key and then of first appearance.

    A model is what is built (its axes), not what it is called. Where a unit has two records in one
    precision, one that got its batch size as asked goes before one that backed off to it, then the
    later one. No mean mixes precisions: of several that carry one weight under a key, the one with
    the most trials counts.
    """
    weighted = [
        entry
        for entry in entries
        if entry.record.trial.mode != "eager" and entry.record.trial.labels.weight
    ]
    slots: dict[tuple[Key, Hashable], dict[str, Entry]] = defaultdict(dict)
    aside: Counter[tuple[str, str]] = Counter()
    chosen, other_precisions = _choose_precisions(weighted)
    for entry in weighted:
        key, weight = row = _row(entry)
        if _precision(entry) != chosen[row]:
            continue
        trial = entry.record.trial
        slot = slots[key, (trial.model.key, trial.batch_size)]
        kept, other = entry, slot.get(weight)
        if other is not None:
            if "smaller_batch" in entry.flags and "smaller_batch" not in other.flags:
                kept, other = other, entry
            aside[other.folder.parent.name, kept.folder.parent.name] += 1
        slot[weight] = kept
    units = [Unit(key, slot) for (key, _), slot in slots.items()]
    notes = [
        f"{count} trial{'' if count == 1 else 's'} of {one} not in the summary: {other} has "
        "the same"
        + (f"; to compare: python -m sweeper.compare {one} {other}" if one != other else "")
        for (one, other), count in aside.items()
    ]
    return Units(tuple(sorted(units, key=_order)), (*notes, *other_precisions))


def _row(entry: Entry) -> tuple[Key, str]:
    """Return the key of an entry, and the weight that it carries under the key."""
    trial = entry.record.trial
    return Key(trial.workload, trial.mode, backend(entry), entry.variant), trial.labels.weight or ""


def _precision(entry: Entry) -> tuple[str, Precision]:
    trial = entry.record.trial
    return trial.labels.precision, trial.precision


def _choose_precisions(
    entries: Iterable[Entry],
) -> tuple[Mapping[tuple[Key, str], tuple[str, Precision]], list[str]]:
    """Choose one precision for each row: the one with the most trials, then the first. Lines tell
    of the others.
    """
    counts: dict[tuple[Key, str], Counter[tuple[str, Precision]]] = defaultdict(Counter)
    for entry in entries:
        counts[_row(entry)][_precision(entry)] += 1
    chosen, lines = {}, []
    for (key, weight), found in counts.items():
        (kept, _), *others = found.most_common()
        chosen[key, weight] = kept
        for (name, _), count in others:
            carrier = (
                f"precision={kept[0]}"
                if kept[0] != name
                else f"another setting of precision={name}"
            )
            trials = f"{count} trial{'' if count == 1 else 's'} in precision={name}"
            lines.append(
                f"{key}: {trials} not in the summary: {carrier} carries the weight {weight}, which "
                "only one precision "
                "can have; make two sweeps of them and report each alone"
            )
    return chosen, lines


def _order(unit: Unit) -> tuple[str, int, str, str]:
    key = unit.key
    return key.workload, rank_mode(key.mode), key.backend or "", key.variant
