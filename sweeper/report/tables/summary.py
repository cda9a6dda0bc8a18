"""summary.csv: geometric means over models, a row for each family and for `all`, by workload, mode, backend, variant.

The unit is a model at a batch size, in the precisions that carry the weights amp and fp32 (`Labels.weight`).

| column | meaning |
|---|---|
| `models` | units tried; left out is what fails before the compiler's turn, `unavailable`, `interrupted` |
| `passed pass_rate` | units that are ok in each of amp and fp32 that the sweep asked for; their share |
| `models_amp geomean_amp geomean_amp_low geomean_amp_high` | over all units that are ok in amp; `fp32` likewise |
| `models_weighted weighted` | 0.75 * geomean over AMP + 0.25 * geomean over fp32 of the units that are ok in both |
| `weighted_low weighted_high` | 95 % interval for "these models": the error of measuring alone |
| `weighted_new_model_low weighted_new_model_high` | 95 % prediction interval for "a new model": one more like these |
| `weighted_failures_as_one` | units judged in both precisions, where a failure counts 1.0: it would run eager |
| `weighted_clipped` | slowdowns raised to 1.0 first, as the tables of 2022 had it |
| `models_device weighted_device weighted_device_low weighted_device_high` | like `weighted`, of device speedups |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.analysis import stats
from sweeper.analysis.stats import Estimate, Interval
from sweeper.core.trial import WEIGHTS
from sweeper.loading.entries import Entry
from sweeper.report.formatting import shortened
from sweeper.report.table import Column, Table
from sweeper.report.tables.units import Key, Unit

ALL = "all"


@dataclass(frozen=True)
class Group:
    """The units of one row and what follows from them; figures that do not exist are None."""

    family: str
    key: Key
    weights: frozenset[str]  # those that any trial of the key carries
    units: Sequence[Unit]

    @cached_property
    def judged(self) -> list[Unit]:
        return [unit for unit in self.units if unit.judged]

    @cached_property
    def passed(self) -> list[Unit]:
        return [unit for unit in self.judged if unit.passed(self.weights)]

    @property
    def pass_rate(self) -> float | None:
        return len(self.passed) / len(self.judged) if self.judged else None

    @cached_property
    def amp(self) -> list[Estimate]:
        return [estimate for unit in self.units if (estimate := unit.estimate("amp"))]

    @cached_property
    def fp32(self) -> list[Estimate]:
        return [estimate for unit in self.units if (estimate := unit.estimate("fp32"))]

    @cached_property
    def both(self) -> list[tuple[Estimate, Estimate]]:
        """AMP and fp32 of the units that are ok in both."""
        pairs = ((unit.estimate("amp"), unit.estimate("fp32")) for unit in self.units)
        return [(amp, fp32) for amp, fp32 in pairs if amp and fp32]

    @cached_property
    def geomean_amp(self) -> Estimate | None:
        return stats.geomean_of_these_models(self.amp) if self.amp else None

    @cached_property
    def geomean_fp32(self) -> Estimate | None:
        return stats.geomean_of_these_models(self.fp32) if self.fp32 else None

    @cached_property
    def device(self) -> list[tuple[Estimate, Estimate]]:
        """Device speedups in AMP and fp32 of the units that have both: they move less from host to host."""
        pairs = ((unit.device_estimate("amp"), unit.device_estimate("fp32")) for unit in self.units)
        return [(amp, fp32) for amp, fp32 in pairs if amp and fp32]

    @cached_property
    def weighted(self) -> Estimate | None:
        return _weighted_of_these_models(self.both)

    @cached_property
    def weighted_device(self) -> Estimate | None:
        return _weighted_of_these_models(self.device)

    @cached_property
    def weighted_new_model(self) -> Estimate | None:
        if not self.both:
            return None
        return stats.weighted_new_model([amp.log for amp, _ in self.both], [fp32.log for _, fp32 in self.both])

    @property
    def weighted_failures_as_one(self) -> float | None:
        tried = [unit.entries for unit in self.judged if len(unit.entries) == len(WEIGHTS)]
        ratios = [(_ratio_or_one(entries["amp"]), _ratio_or_one(entries["fp32"])) for entries in tried]
        return _weighted([(amp, fp32) for amp, fp32 in ratios if amp and fp32])

    @property
    def weighted_clipped(self) -> float | None:
        return _weighted([(max(amp.ratio, 1.0), max(fp32.ratio, 1.0)) for amp, fp32 in self.both])


def _weighted_of_these_models(pairs: Sequence[tuple[Estimate, Estimate]]) -> Estimate | None:
    if not pairs:
        return None
    amp, fp32 = zip(*pairs, strict=True)
    return stats.weighted_of_these_models(stats.geomean_of_these_models(amp), stats.geomean_of_these_models(fp32))


def _ratio_or_one(entry: Entry) -> float | None:
    return entry.result.speedup if entry.record.status == "ok" else 1.0


def _weighted(pairs: Sequence[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    amp, fp32 = zip(*pairs, strict=True)
    return stats.weighted(stats.geomean(amp), stats.geomean(fp32))


def _ratio(name: str, estimate: Callable[[Group], Estimate | None]) -> Column[Group]:
    return Column(name, lambda group: found.ratio if (found := estimate(group)) else None)


def _bounds(name: str, estimate: Callable[[Group], Estimate | None]) -> tuple[Column[Group], Column[Group]]:
    def interval(group: Group) -> Interval | None:
        found = estimate(group)
        return found.interval() if found else None

    return (
        Column(f"{name}_low", lambda group: found.low if (found := interval(group)) else None),
        Column(f"{name}_high", lambda group: found.high if (found := interval(group)) else None),
    )


COLUMNS: tuple[Column[Group], ...] = (
    Column("family", lambda group: group.family),
    Column("workload", lambda group: group.key.workload),
    Column("mode", lambda group: group.key.mode),
    Column("backend", lambda group: group.key.backend),
    Column("variant", lambda group: group.key.variant),
    Column("models", lambda group: len(group.judged)),
    Column("passed", lambda group: len(group.passed)),
    Column("pass_rate", lambda group: group.pass_rate),
    Column("models_amp", lambda group: len(group.amp)),
    _ratio("geomean_amp", lambda group: group.geomean_amp),
    *_bounds("geomean_amp", lambda group: group.geomean_amp),
    Column("models_fp32", lambda group: len(group.fp32)),
    _ratio("geomean_fp32", lambda group: group.geomean_fp32),
    *_bounds("geomean_fp32", lambda group: group.geomean_fp32),
    Column("models_weighted", lambda group: len(group.both)),
    _ratio("weighted", lambda group: group.weighted),
    *_bounds("weighted", lambda group: group.weighted),
    *_bounds("weighted_new_model", lambda group: group.weighted_new_model),
    Column("weighted_failures_as_one", lambda group: group.weighted_failures_as_one),
    Column("weighted_clipped", lambda group: group.weighted_clipped),
    Column("models_device", lambda group: len(group.device)),
    _ratio("weighted_device", lambda group: group.weighted_device),
    *_bounds("weighted_device", lambda group: group.weighted_device),
)


def groups(units: Iterable[Unit]) -> list[Group]:
    """The rows of the summary: by key, families in alphabetical order, then `all`."""
    by_key: dict[Key, list[Unit]] = defaultdict(list)
    for unit in units:
        by_key[unit.key].append(unit)
    rows = []
    for key, of_key in by_key.items():
        weights = frozenset(weight for unit in of_key for weight in unit.entries)
        families: dict[str, list[Unit]] = defaultdict(list)
        for unit in of_key:
            families[unit.family].append(unit)
        rows += [Group(family, key, weights, families[family]) for family in sorted(families)]
        rows.append(Group(ALL, key, weights, of_key))
    return rows


def summary(rows: Iterable[Group]) -> Table:
    return Table.of(COLUMNS, rows)


def incomplete(rows: Iterable[Group]) -> list[str]:
    """A line for each key and weight that some units lack a record of: they count as not passed."""
    lines = []
    for group in rows:
        for weight in sorted(group.weights) if group.family == ALL else ():
            lacking = [unit.name for unit in group.judged if weight not in unit.entries]
            if lacking:
                lines.append(
                    f"{group.key}: {len(lacking)} of {len(group.judged)} models have no record in {weight} "
                    f"and count as not passed: {shortened(lacking)}"
                )
    return lines
