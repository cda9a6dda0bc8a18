"""Units: what summary.csv takes its means over, a model at a batch size with its trials in the weighted precisions.

Place in the flow: `Entry -> Unit`, under the key that a row holds fixed. mode=eager and precisions without a weight
stay out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from sweeper.analysis.stats import Estimate
from sweeper.analysis.weights import check_weights
from sweeper.core.trial import MODES
from sweeper.loading.entries import Entry


def backend(entry: Entry) -> str | None:
    """The backend's name; None where nothing is compiled."""
    return entry.record.trial.backend if entry.record.trial.mode != "eager" else None


@dataclass(frozen=True)
class Key:
    """What a row of the summary holds fixed, beside the family."""

    workload: str
    mode: str
    backend: str | None
    variant: str

    def __str__(self) -> str:
        return ", ".join(part for part in (self.workload, self.mode, self.backend, self.variant) if part)

    @property
    def order(self) -> tuple[str, int, str, str]:
        mode = MODES.index(self.mode) if self.mode in MODES else len(MODES)
        return self.workload, mode, self.backend or "", self.variant


@dataclass(frozen=True)
class Unit:
    """A model at a batch size under one key; `entries` maps each weight to the trial that carries it, one at least."""

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

    def passed(self, weights: Iterable[str]) -> bool:
        return all(weight in self.entries and self.entries[weight].record.status == "ok" for weight in weights)

    def estimate(self, weight: str) -> Estimate | None:
        """The speedup under `weight`; None when that is not ok or was not tried."""
        return self.entries[weight].result.estimate if weight in self.entries else None

    def device_estimate(self, weight: str) -> Estimate | None:
        """The same of the time in which the device was busy; None where that is not known, too."""
        return self.entries[weight].result.device_estimate if weight in self.entries else None


@dataclass(frozen=True)
class Units:
    """`notes` say which records were set aside because another one stands for the same unit."""

    units: tuple[Unit, ...]
    notes: tuple[str, ...]


def collect(entries: Iterable[Entry]) -> Units:
    """Put the trials of each model together, units in order of key and then of first appearance.

    A model is what is built (its axes), not what it is called. Where a unit has two records in one precision, one that
    got its batch size as asked goes before one that backed off to it, then the later one.
    Raises ConfigError when two precision options carry the same weight under one key.
    """
    weighted = [entry for entry in entries if entry.record.trial.mode != "eager" and entry.record.trial.labels.weight]
    check_weights(entry.record.trial for entry in weighted)
    slots: dict[tuple[Key, Hashable], dict[str, Entry]] = defaultdict(dict)
    aside: Counter[tuple[str, str]] = Counter()
    for entry in weighted:
        slot = slots[_key(entry), _identity(entry)]
        weight = entry.record.trial.labels.weight or ""
        held = slot.get(weight)
        if held is not None:
            held, entry = sorted((held, entry), key=_backed_off, reverse=True)  # stable: the later one wins a tie
            aside[held.folder.parent.name, entry.folder.parent.name] += 1
        slot[weight] = entry
    units = [Unit(key, slot) for (key, _), slot in slots.items()]
    notes = [
        f"{count} trial{'' if count == 1 else 's'} of {one} not in the summary: {other} has the same"
        + (f"; to compare: python -m sweeper.compare {one} {other}" if one != other else "")
        for (one, other), count in aside.items()
    ]
    return Units(tuple(sorted(units, key=lambda unit: unit.key.order)), tuple(notes))


def _key(entry: Entry) -> Key:
    trial = entry.record.trial
    return Key(trial.workload, trial.mode, backend(entry), entry.variant)


def _identity(entry: Entry) -> Hashable:
    return entry.record.trial.model.key, entry.record.trial.batch_size


def _backed_off(entry: Entry) -> bool:
    return "smaller_batch" in entry.flags
