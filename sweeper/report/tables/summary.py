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

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.analysis import stats
from sweeper.analysis.stats import AMP_SHARE, FP32_SHARE, Estimate, Interval
from sweeper.core.trial import WEIGHTS
from sweeper.loading.entries import Entry
from sweeper.report.formatting import KEY, as_text, estimate, interval, key, number, ratio, shortened, text, varying
from sweeper.report.table import Column, Row, Table, Value
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
    for group_key, of_key in by_key.items():
        weights = frozenset(weight for unit in of_key for weight in unit.entries)
        families: dict[str, list[Unit]] = defaultdict(list)
        for unit in of_key:
            families[unit.family].append(unit)
        rows += [Group(family, group_key, weights, families[family]) for family in sorted(families)]
        rows.append(Group(ALL, group_key, weights, of_key))
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


WEIGHTING = f"weighted {AMP_SHARE:g} AMP + {FP32_SHARE:g} fp32"


MODELS_TO_PREDICT = 6  # a new one: of four, the interval reaches from a fifth to sixteen


CLIPPED = "preset=pt2"  # its figures were made so


def summary_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of summary.csv."""
    return (
        as_text("family"),
        *(as_text(name) for name in varying(rows, KEY)),
        Column("passed", lambda row: f"{row['passed']} of {row['models']}"),
        Column("AMP", lambda row: _counted(row, "geomean_amp", "models_amp")),
        Column("fp32", lambda row: _counted(row, "geomean_fp32", "models_fp32")),
        Column("weighted", lambda row: _counted(row, "weighted", "models_weighted")),
    )


def _counted(row: Row, name: str, count: str) -> str:
    found = estimate(row, name)
    return f"{found} ({row[count]})" if found else ""


def judged_groups(rows: Sequence[Row], overall: str) -> list[Row]:
    """Rows of the summary that say something: some model was judged, and `overall` is more than one family."""
    judged = [row for row in rows if row["models"]]
    families = Counter(key(row) for row in judged if row["family"] != overall)
    return [row for row in judged if row["family"] != overall or families[key(row)] != 1]


def headlines(rows: Iterable[Row]) -> list[tuple[str, str, bool]]:
    """What a row holds fixed, its weighted mean and whether it has one; rows without one share a line by reason."""
    judged = [row for row in rows if row["models"]]
    found = [(key(row), headline(row), True) for row in judged if row["weighted"] is not None]
    without: dict[str, list[str]] = {}
    for row in judged:
        if row["weighted"] is None:
            without.setdefault(headline(row), []).append(key(row))
    return found + [(shortened(keys, between="; "), line, False) for line, keys in without.items()]


def not_judged(rows: Iterable[Row]) -> str:
    """A line on the groups in which nothing but what is not the compiler's fault came out."""
    keys = [key(row) for row in rows if not row["models"]]
    return f"no model was judged, see the failures: {'; '.join(keys)}" if keys else ""


def headline(row: Row) -> str:
    """The weighted mean of a row, e.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 (3 models), these models [1.40, 1.46]`."""
    if row["weighted"] is None:
        return f"{WEIGHTING}: none, {_why_not_weighted(row)}"
    line = f"{WEIGHTING}: {ratio(number(row, 'weighted'))} ({models(row['models_weighted'])})"
    named = {
        "these models": interval(row, "weighted"),
        "a new model": of_a_new_model(row),
        "by device time": by_device_time(row),
    }
    if CLIPPED in text(row["variant"]):
        named["as in 2022, slowdowns raised to 1.0,"] = ratio(number(row, "weighted_clipped"))
    return ", ".join([line, *(f"{name} {found}" for name, found in named.items() if found)])


def of_a_new_model(row: Row) -> str:
    """The prediction for one more model; of few it is so wide that it says nothing, and stays in summary.csv."""
    known = (number(row, "models_weighted") or 0) >= MODELS_TO_PREDICT
    return interval(row, "weighted_new_model") if known else ""


def by_device_time(row: Row) -> str:
    """The weighted mean of device speedups, `1.52 [1.51, 1.52]`, with its models where those are others."""
    found, count = estimate(row, "weighted_device"), row["models_device"]
    return found if count == row["models_weighted"] or not found else f"{found} ({models(count)})"


def models(count: Value) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


def _why_not_weighted(row: Row) -> str:
    lacking = [weight for weight in ("amp", "fp32") if not row[f"models_{weight}"]]
    if lacking:
        return f"no model is ok in a precision of weight {' or '.join(lacking)}"
    return "no model is ok in both precisions"
