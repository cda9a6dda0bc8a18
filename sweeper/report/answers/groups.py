"""Groups: the model points of each row of summary.csv, and the means over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter

from sweeper.analysis import stats
from sweeper.analysis.flags import DEVICE_DOUBTS, DOUBTS, UNVERIFIED
from sweeper.analysis.result import Result
from sweeper.analysis.stats import Estimate
from sweeper.core.grouping import group_by
from sweeper.core.trial import WEIGHTS
from sweeper.report.columns.formats import count, shorten_names

from .model_points import GroupKey, ModelPoint

ALL = "all"


@dataclass(frozen=True)
class Group:
    """The model points of one row and what follows from them; figures that do not exist are
    None.
    """

    family: str
    key: GroupKey
    weights: frozenset[str]  # all that trials of the key carry
    points: Sequence[ModelPoint]
    suite: str = ""  # of a group of one suite, whose family says so

    @property
    def is_whole(self) -> bool:
        """Whether it has every family of its key."""
        return self.family == ALL

    @cached_property
    def judged(self) -> list[ModelPoint]:
        return [point for point in self.points if point.judged]

    @cached_property
    def passed(self) -> list[ModelPoint]:
        return [point for point in self.judged if self.weights <= point.verified.keys()]

    @property
    def pass_rate(self) -> float | None:
        return len(self.passed) / len(self.judged) if self.judged else None

    @cached_property
    def unverified(self) -> list[ModelPoint]:
        """Points with a trial that is ok, but whose result could not be judged: it is in no
        mean.
        """
        return [point for point in self.points if point.has_unverified]

    @cached_property
    def means(self) -> dict[Mean, Estimate | None]:
        return {mean: mean.compute(self) for mean in MEANS}

    @cached_property
    def measured(self) -> dict[Mean, list[tuple[ModelPoint, list[Estimate]]]]:
        """The models of each mean, with their speedups in the order of its weights."""
        return {mean: list(mean.select(self.points)) for mean in MEANS}

    @property
    def weighted(self) -> Estimate | None:
        return self.means[WEIGHTED]

    @cached_property
    def weighted_new_model(self) -> Estimate | None:
        pairs = self.measured[WEIGHTED]
        values = [stats.weighted(amp.ratio, fp32.ratio) for _, (amp, fp32) in pairs]
        return stats.predict_new_model(values) if values else None

    @property
    def weighted_failures_as_one(self) -> float | None:
        pairs = []
        for point in self.judged:
            amp, fp32 = map(point.speedup_or_one, WEIGHTS)
            if amp and fp32:
                pairs.append((amp, fp32))
        return _weigh(pairs)

    @property
    def weighted_clipped(self) -> float | None:
        pairs = []
        for _, (amp, fp32) in self.measured[WEIGHTED]:
            pairs.append((max(amp.ratio, 1.0), max(fp32.ratio, 1.0)))
        return _weigh(pairs)


def _weigh(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Weigh the mean over AMP and the mean over fp32."""
    if not pairs:
        return None
    return stats.weighted(*map(stats.geomean, zip(*pairs, strict=True)))


@dataclass(frozen=True)
class Mean:
    """A mean of a group by what people call it: over its models with a verified speedup under each
    of `weights`. Of these models, those are in doubt that one of the flags `doubts` says to be off
    by more than their interval.
    """

    title: str
    name: str  # of its column, or of its metric in MLflow
    weights: Sequence[str] = WEIGHTS
    speedup: Callable[[Result], Estimate | None] = lambda result: result.speedup
    doubts: Set[str] = DOUBTS

    def select(self, points: Iterable[ModelPoint]) -> Iterator[tuple[ModelPoint, list[Estimate]]]:
        """Find the models, with their speedups in the order of `weights`."""
        for point in points:
            results = filter(None, map(point.verified.get, self.weights))
            speedups = list(filter(None, map(self.speedup, results)))
            if len(speedups) == len(self.weights):
                yield point, speedups

    def estimate(self, group: Group) -> Estimate | None:
        return group.means[self]

    def compute(self, group: Group) -> Estimate | None:
        selected = [speedups for _, speedups in group.measured[self]]
        if not selected:
            return None
        means = list(map(stats.geomean_of_these_models, zip(*selected, strict=True)))
        if len(means) == 1:
            return means[0]
        return stats.weighted_of_these_models(*means)

    def count(self, group: Group) -> int:
        return len(group.measured[self])

    def count_sure(self, group: Group) -> int:
        return sum(point.is_sure(self.weights, self.doubts) for point, _ in group.measured[self])

    def name_sure(self, group: Group) -> str:
        """Say how many of the models are undisturbed: `all`, `2` or `none`."""
        sure = self.count_sure(group)
        if sure and sure == self.count(group):
            return "all"
        return str(sure or "none")

    def describe_models(self, group: Group) -> str:
        """Count the models of the mean, e.g. `42 models, 2 undisturbed`."""
        return f"{count(self.count(group), 'model')}, {self.name_sure(group)} undisturbed"


WEIGHTED = Mean("weighted", "weighted")
AMP = Mean("AMP", "geomean_amp", ("amp",))
FP32 = Mean("fp32", "geomean_fp32", ("fp32",))
DEVICE = Mean(
    "by device time",
    "weighted_device",
    speedup=lambda result: result.device_speedup,
    doubts=DEVICE_DOUBTS,
)
MEANS = (WEIGHTED, AMP, FP32, DEVICE)


def make_groups(points: Sequence[ModelPoint]) -> list[Group]:
    """Make the rows of the summary: by key, families in alphabetical order, then `all`."""
    groups = []
    for key, every in group_by(map(attrgetter("key"), points), points).items():
        whole = Group(
            ALL, key, frozenset(chain.from_iterable(point.entries for point in every)), every
        )
        by_family = group_by(map(attrgetter("first.trial.labels.family"), every), every)
        for family, found in sorted(by_family.items()):
            groups.append(replace(whole, family=family, points=found))
        groups.append(whole)
    return groups


def group_by_suite(groups: Iterable[Group]) -> list[Group]:
    """Make a group of each suite of a whole group, where there are several suites."""
    suites = []
    for whole in groups:
        if whole.is_whole:
            by_suite = group_by(map(attrgetter("suite"), whole.points), whole.points)
            for suite, found in by_suite.items():
                if suite:
                    named = replace(whole, family=f"suite {suite}", points=found, suite=suite)
                    suites.append(named)
    if len({group.suite for group in suites}) < 2:
        return []
    return suites


def list_missing_precisions(groups: Iterable[Group]) -> Iterator[str]:
    """Make a line for each key and weight that some points lack a record of: they count as not
    passed.
    """
    for group in groups:
        if not group.is_whole:
            continue
        for weight in sorted(group.weights):
            lacking = [point.name for point in group.judged if weight not in point.entries]
            if lacking:
                yield (
                    f"{group.key}: {len(lacking)} of {len(group.judged)} models have no record in "
                    f"{weight} and count as not passed: {shorten_names(lacking)}"
                )


def list_unverified(groups: Iterable[Group]) -> Iterator[str]:
    """Make a line for each key in which trials are ok but not verified."""
    for group in groups:
        if group.is_whole and group.unverified:
            names = [point.name for point in group.unverified]
            yield (
                f"{group.key}: {count(len(names), 'model')} with a trial that is ok but not "
                f"verified ({UNVERIFIED}): such a trial is in no mean, and its model counts as not "
                f"passed: {shorten_names(names)}"
            )
