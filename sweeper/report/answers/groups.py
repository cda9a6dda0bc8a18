"""Groups: the model points of each row of summary.csv, and the means over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from sweeper.analysis import stats
from sweeper.analysis.flags import DEVICE_DOUBTS, DOUBTS, UNVERIFIED
from sweeper.analysis.stats import Estimate
from sweeper.core.trial import WEIGHTS
from sweeper.report.columns.formats import count, shorten_names

from .model_points import GroupKey, ModelPoint

K = TypeVar("K", GroupKey, str)
T = TypeVar("T", float, Estimate)
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
        if self.judged:
            return len(self.passed) / len(self.judged)
        return None

    @cached_property
    def unverified(self) -> list[ModelPoint]:
        """Points with a trial that is ok, but whose result could not be judged: it is in no
        mean.
        """
        return [point for point in self.points if point.has_unverified]

    def estimates(self, weight: str) -> list[Estimate]:
        """Return the speedups of all points that are verified under `weight`."""
        estimates = []
        for point in self.points:
            estimate = point.estimate(weight)
            if estimate:
                estimates.append(estimate)
        return estimates

    def geomean(self, weight: str) -> Estimate | None:
        estimates = self.estimates(weight)
        if estimates:
            return stats.geomean_of_these_models(estimates)
        return None

    @cached_property
    def both(self) -> list[tuple[Estimate, Estimate]]:
        """AMP and fp32 of the points that are verified in both."""
        return _pair_up(self.points, ModelPoint.estimate)

    @cached_property
    def device(self) -> list[tuple[Estimate, Estimate]]:
        """Device speedups in AMP and fp32 of the points that have both: they move less from host to
        host.
        """
        return _pair_up(self.points, ModelPoint.device_estimate)

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
        logs = [(amp.log, fp32.log) for amp, fp32 in self.both]
        return stats.weighted_new_model(*zip(*logs, strict=True))

    @property
    def weighted_failures_as_one(self) -> float | None:
        tried = [point for point in self.judged if len(point.entries) == len(WEIGHTS)]
        pairs = _pair_up(tried, ModelPoint.speedup_or_one)
        return _weigh(pairs, stats.geomean, stats.weighted)

    @property
    def weighted_clipped(self) -> float | None:
        pairs = [(max(amp.ratio, 1.0), max(fp32.ratio, 1.0)) for amp, fp32 in self.both]
        return _weigh(pairs, stats.geomean, stats.weighted)


@dataclass(frozen=True)
class Mean:
    """A mean of a group by what people call it, and how many of its models are without doubt."""

    title: str
    meaning: str
    estimate: Callable[[Group], Estimate | None]
    select: Callable[[Group], Sequence[object]]  # its models, one value for each
    weights: Collection[str] = WEIGHTS
    doubts: Set[str] = frozenset(DOUBTS)

    def count(self, group: Group) -> int:
        return len(self.select(group))

    def count_sure(self, group: Group) -> int:
        sure = [point for point in group.points if point.is_sure(self.weights, self.doubts)]
        return self.count(replace(group, points=sure))

    def name_sure(self, group: Group) -> str:
        """Say how many of the models are without doubt: `all`, `2` or `none`."""
        sure = self.count_sure(group)
        if sure and sure == self.count(group):
            return "all"
        return str(sure or "none")

    def describe_models(self, group: Group) -> str:
        """Count the models of the mean, e.g. `42 models, 2 without doubt`."""
        return f"{count(self.count(group), 'model')}, {self.name_sure(group)} without doubt"


def _make_mean(title: str, weight: str) -> Mean:
    """Make the mean over the models in one precision."""
    return Mean(
        title,
        f"{title} alone",
        lambda group: group.geomean(weight),
        lambda group: group.estimates(weight),
        (weight,),
    )


WEIGHTED = Mean(
    "weighted",
    f"{stats.AMP_SHARE:g} AMP + {stats.FP32_SHARE:g} fp32",
    lambda group: group.weighted,
    lambda group: group.both,
)
AMP = _make_mean("AMP", "amp")
FP32 = _make_mean("fp32", "fp32")
DEVICE = Mean(
    "by device time",
    "",
    lambda group: group.weighted_device,
    lambda group: group.device,
    doubts=DEVICE_DOUBTS,
)


def _pair_up(
    points: Iterable[ModelPoint], read: Callable[[ModelPoint, str], T | None]
) -> list[tuple[T, T]]:
    """Read the values in AMP and in fp32 of the points that have both."""
    pairs = []
    for point in points:
        amp, fp32 = read(point, "amp"), read(point, "fp32")
        if amp and fp32:
            pairs.append((amp, fp32))
    return pairs


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


def make_groups(points: Iterable[ModelPoint]) -> list[Group]:
    """Make the rows of the summary: by key, families in alphabetical order, then `all`."""
    groups = []
    for key, every in _split(points, lambda point: point.key).items():
        weights = _list_weights(every)
        by_family = _split(every, lambda point: point.family)
        for family, found in sorted(by_family.items()):
            groups.append(Group(family, key, weights, found))
        groups.append(Group(ALL, key, weights, every))
    return groups


def group_by_suite(points: Sequence[ModelPoint]) -> list[Group]:
    """Group model points as the summary does, with the suite in place of the family, where there
    are several suites.
    """
    if len({point.suite for point in points if point.suite}) < 2:
        return []
    groups = []
    for key, every in _split(points, lambda point: point.key).items():
        for suite, found in _split(every, lambda point: point.suite).items():
            if suite:
                groups.append(Group(f"suite {suite}", key, _list_weights(every), found, suite))
    return groups


def _split(
    points: Iterable[ModelPoint], read: Callable[[ModelPoint], K]
) -> dict[K, list[ModelPoint]]:
    """Group model points by what is read of each."""
    groups: dict[K, list[ModelPoint]] = defaultdict(list)
    for point in points:
        groups[read(point)].append(point)
    return groups


def _list_weights(points: Iterable[ModelPoint]) -> frozenset[str]:
    return frozenset[str]().union(*(point.entries for point in points))


def list_missing_precisions(groups: Iterable[Group]) -> list[str]:
    """Make a line for each key and weight that some points lack a record of: they count as not
    passed.
    """
    lines = []
    for group in groups:
        if not group.is_whole:
            continue
        for weight in sorted(group.weights):
            lacking = [point.name for point in group.judged if weight not in point.entries]
            if lacking:
                lines.append(
                    f"{group.key}: {len(lacking)} of {len(group.judged)} models have no record in "
                    f"{weight} and count as not passed: {shorten_names(lacking)}"
                )
    return lines


def list_unverified(groups: Iterable[Group]) -> list[str]:
    """Make a line for each key in which trials are ok but not verified."""
    lines = []
    for group in groups:
        if group.is_whole and group.unverified:
            names = [point.name for point in group.unverified]
            lines.append(
                f"{group.key}: {count(len(names), 'model')} with a trial that is ok but not "
                f"verified ({UNVERIFIED}): such a trial is in no mean, and its model counts as not "
                f"passed: {shorten_names(names)}"
            )
    return lines
