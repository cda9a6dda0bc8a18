"""Groups: the units of each row of summary.csv, and the means over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from sweeper.analysis import stats
from sweeper.analysis.flags import DEVICE_DOUBTS, DOUBTS, UNVERIFIED
from sweeper.analysis.stats import Estimate
from sweeper.core.trial import WEIGHTS
from sweeper.report.formatting import shorten_names
from sweeper.report.tables.units import Key, Unit

T = TypeVar("T", float, Estimate)
# the speedup of a unit under a weight, None where it has none
Read = Callable[[Unit, str], Estimate | None]
ALL = "all"


@dataclass(frozen=True)
class Group:
    """The units of one row and what follows from them; figures that do not exist are None."""

    family: str
    key: Key
    weights: frozenset[str]  # all that trials of the key carry
    units: Sequence[Unit]

    @cached_property
    def judged(self) -> list[Unit]:
        return [unit for unit in self.units if unit.judged]

    @cached_property
    def passed(self) -> list[Unit]:
        return [unit for unit in self.judged if self.weights <= unit.verified_weights]

    @cached_property
    def unverified(self) -> list[Unit]:
        """Units with a trial that is ok, but on whose result no verdict was possible: it is in no
        mean.
        """
        return [unit for unit in self.units if unit.has_unverified]

    @cached_property
    def sure(self) -> Group:
        """The units without doubt under both weights."""
        return self._without_doubt(WEIGHTS)

    @cached_property
    def sure_in(self) -> Mapping[str, Group]:
        """The units without doubt under each weight alone."""
        return {weight: self._without_doubt((weight,)) for weight in WEIGHTS}

    @cached_property
    def sure_by_device(self) -> Group:
        """The units without a doubt of device time, under both weights."""
        return self._without_doubt(WEIGHTS, DEVICE_DOUBTS)

    def _without_doubt(self, weights: Collection[str], doubts: Collection[str] = DOUBTS) -> Group:
        """The group of the units that were tried under each of `weights`, and whose trials there
        have no such flag.
        """
        tried = (unit for unit in self.units if all(weight in unit.entries for weight in weights))
        return replace(self, units=[unit for unit in tried if not unit.has_doubt(weights, doubts)])

    def estimates(self, weight: str) -> list[Estimate]:
        """Return the speedups of all units that are verified under `weight`."""
        return [estimate for unit in self.units if (estimate := unit.estimate(weight))]

    def geomean(self, weight: str) -> Estimate | None:
        estimates = self.estimates(weight)
        return stats.geomean_of_these_models(estimates) if estimates else None

    @cached_property
    def both(self) -> list[tuple[Estimate, Estimate]]:
        """AMP and fp32 of the units that are verified in both."""
        return self._pair_up(Unit.estimate)

    @cached_property
    def device(self) -> list[tuple[Estimate, Estimate]]:
        """Device speedups in AMP and fp32 of the units that have both: they move less from host to
        host.
        """
        return self._pair_up(Unit.device_estimate)

    def _pair_up(self, read: Read) -> list[tuple[Estimate, Estimate]]:
        pairs = ((read(unit, "amp"), read(unit, "fp32")) for unit in self.units)
        return [(amp, fp32) for amp, fp32 in pairs if amp and fp32]

    @cached_property
    def weighted(self) -> Estimate | None:
        return _weigh_models(self.both)

    @cached_property
    def weighted_device(self) -> Estimate | None:
        return _weigh_models(self.device)

    @cached_property
    def weighted_new_model(self) -> Estimate | None:
        if not self.both:
            return None
        return stats.weighted_new_model(
            [amp.log for amp, _ in self.both], [fp32.log for _, fp32 in self.both]
        )

    @property
    def weighted_failures_as_one(self) -> float | None:
        tried = [unit for unit in self.judged if len(unit.entries) == len(WEIGHTS)]
        ratios = [(unit.speedup_or_one("amp"), unit.speedup_or_one("fp32")) for unit in tried]
        pairs = [(amp, fp32) for amp, fp32 in ratios if amp and fp32]
        return _weigh(pairs, stats.geomean, stats.weighted)

    @property
    def weighted_clipped(self) -> float | None:
        pairs = [(max(amp.ratio, 1.0), max(fp32.ratio, 1.0)) for amp, fp32 in self.both]
        return _weigh(pairs, stats.geomean, stats.weighted)


def _weigh_models(pairs: Sequence[tuple[Estimate, Estimate]]) -> Estimate | None:
    """Weigh the means of these models in AMP and in fp32."""
    return _weigh(pairs, stats.geomean_of_these_models, stats.weighted_of_these_models)


def _weigh(
    pairs: Sequence[tuple[T, T]], mean: Callable[[Sequence[T]], T], weigh: Callable[[T, T], T]
) -> T | None:
    """Weigh the mean over AMP and the mean over fp32."""
    if not pairs:
        return None
    amp, fp32 = zip(*pairs, strict=True)
    return weigh(mean(amp), mean(fp32))


def groups(units: Iterable[Unit]) -> list[Group]:
    """Make the rows of the summary: by key, families in alphabetical order, then `all`."""
    by_key: dict[Key, list[Unit]] = defaultdict(list)
    by_family: dict[Key, dict[str, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        by_key[unit.key].append(unit)
        by_family[unit.key][unit.family].append(unit)
    rows = []
    for key, every in by_key.items():
        weights = frozenset(weight for unit in every for weight in unit.entries)
        rows += [
            Group(family, key, weights, found) for family, found in sorted(by_family[key].items())
        ]
        rows.append(Group(ALL, key, weights, every))
    return rows


def list_missing_precisions(rows: Iterable[Group]) -> list[str]:
    """Make a line for each key and weight that some units lack a record of: they count as not
    passed.
    """
    lines = []
    for group in rows:
        for weight in sorted(group.weights) if group.family == ALL else ():
            lacking = [unit.name for unit in group.judged if weight not in unit.entries]
            if lacking:
                lines.append(
                    f"{group.key}: {len(lacking)} of {len(group.judged)} models have no record in "
                    f"{weight} "
                    f"and count as not passed: {shorten_names(lacking)}"
                )
    return lines


def list_unverified(rows: Iterable[Group]) -> list[str]:
    """Make a line for each key in which trials are ok but not verified."""
    lines = []
    for group in rows:
        if group.family == ALL and group.unverified:
            names = [unit.name for unit in group.unverified]
            lines.append(
                f"{group.key}: {len(names)} model{'' if len(names) == 1 else 's'} with a trial "
                "that is ok but not "
                f"verified ({UNVERIFIED}): such a trial is in no mean, and its model counts as not "
                "passed: "
                f"{shorten_names(names)}"
            )
    return lines
