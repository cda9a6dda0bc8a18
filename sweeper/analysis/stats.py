"""Intervals, tests and geometric means: floats in, floats out, every formula with its source.

Everything works on logs of ratios, where a speedup of 2 and a slowdown of 1/2 are equally far from
1.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from statistics import fmean, geometric_mean, median, variance
from typing import NamedTuple

CONFIDENCE = 0.95
# the weighting of the PyTorch 2.0 announcement, https://pytorch.org/get-started/pytorch-2.x/
AMP_SHARE = 0.75
FP32_SHARE = 0.25
# of the median variance: stands in for a variance of 0, which has no log (as in limma)
MIN_VARIANCE = 1e-5


class Interval(NamedTuple):
    """Two-sided confidence interval of a ratio."""

    low: float
    high: float


class Bounded(NamedTuple):
    """A figure and the ends of its interval; None where they are not known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


NOT_KNOWN = Bounded()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean log ratio, the variance of this mean (None with a single sample) and its degrees of
    freedom.

    `count` is how many values the mean was taken over, None for a combination of other estimates.
    For a difference of two means it is half their harmonic mean: as many values would have the
    variance of the difference.
    """

    log: float
    variance: float | None = None
    degrees: float = 0.0
    count: float | None = None

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    def interval(self) -> Interval | None:
        """Student's t interval, back on the scale of ratios; None without a variance."""
        half = self.half_width()
        if half is None:
            return None
        return Interval(math.exp(self.log - half), math.exp(self.log + half))

    def half_width(self) -> float | None:
        """Half of the interval's width, of the log; None without a variance."""
        if self.variance is None:
            return None
        return t_quantile(self.degrees) * math.sqrt(self.variance)


def ratio_of(estimate: Estimate | None) -> float | None:
    """Return the ratio of an estimate that may be missing."""
    return estimate.ratio if estimate else None


@cache
def t_quantile(degrees: float) -> float:
    """The factor of a two-sided 95 % interval with `degrees` degrees of freedom (Student,
    Biometrika 6, 1908).
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def mean_of_logs(logs: Sequence[float]) -> Estimate:
    """The mean of independent log ratios with the variance of this mean, s^2 / n on n - 1 degrees
    of freedom.
    """
    count = len(logs)
    if count < 2:
        return Estimate(fmean(logs), count=1)
    return Estimate(fmean(logs), variance(logs) / count, count - 1, count)


def mean_within(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean over all values of some groups, with its error for these groups alone.

    The distance of the groups does not enter: the variance of a value is the pooled one, squares
    about each group's own mean over N - groups degrees of freedom (one-way analysis of variance;
    Fisher, Statistical Methods for Research Workers, 1925, ch. VII). Some group must have two
    values.
    """
    values = list(chain.from_iterable(groups))
    degrees = len(values) - len(groups)
    squares = 0.0
    for group in groups:
        mean = fmean(group)
        for value in group:
            squares += (value - mean) ** 2
    return Estimate(fmean(values), squares / degrees / len(values), degrees, len(values))


def group_logs_by_draw(values: Iterable[tuple[int, float | None]]) -> list[list[float]]:
    """Group the logs of values by their draw, without missing values."""
    draws: dict[int, list[float]] = defaultdict(list)
    for draw, value in values:
        if value is not None:
            draws[draw].append(math.log(value))
    return list(draws.values())


def mean_over_draws(draws: Sequence[Sequence[float]], vary: bool) -> Estimate:
    """The mean log of processes in draws, one log at least; where draws `vary`, the mean of the
    draws' means.

    Otherwise the draws are taken as fixed: the variance is that of processes within them, unless no
    draw has two.
    """
    if vary:
        return mean_of_logs([fmean(logs) for logs in draws])
    if any(len(logs) > 1 for logs in draws):
        return mean_within(draws)
    return mean_of_logs(list(chain.from_iterable(draws)))


def difference(one: Estimate, other: Estimate) -> Estimate:
    """The log of the ratio of two independent ratios, without the assumption of equal variances
    (Welch's t).

    Welch, "The generalization of Student's problem when several different population variances are
    involved", Biometrika 34, 1947.
    """
    found = _sum_of_independent(one.log - other.log, [(1, one), (-1, other)])
    if one.count and other.count:
        return replace(found, count=1 / (1 / one.count + 1 / other.count))
    return found


def p_value(estimate: Estimate) -> float | None:
    """How often chance alone gives a mean at least so far from 0 on either side, by Student's t;
    None: no variance.
    """
    tail = _tail(estimate, abs(estimate.log))
    if tail is None:
        return None
    return 2 * tail


def equivalence_p_value(estimate: Estimate, margin: float) -> float | None:
    """The larger p of two one-sided tests, that the mean is above -margin and that it is below
    margin (TOST).

    Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for
    assessing the equivalence of average bioavailability", J. Pharmacokinetics and Biopharmaceutics
    15(6), 1987. None without a variance.
    """
    return _tail(estimate, margin - abs(estimate.log))


def _tail(estimate: Estimate, distance: float) -> float | None:
    """Share of the estimate's t distribution beyond `distance` from its mean; with a variance of 0
    all or nothing.
    """
    if estimate.variance is None:
        return None
    if estimate.variance == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    # a third of a second, which reports without intervals need not wait for
    from scipy.special import stdtr

    return float(stdtr(estimate.degrees, -distance / math.sqrt(estimate.variance)))


# scipy.stats.false_discovery_control does the same, but scipy.stats takes 0.7 s longer to import
# than scipy.special.
def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the same order: of the findings up to q, a share of q at most is false.

    Benjamini and Hochberg, "Controlling the false discovery rate", J. R. Statist. Soc. B 57(1),
    1995. Where there is nothing to be found, the chance of any finding is q at most.
    """
    adjusted, count, least = list(p_values), len(p_values), 1.0
    falling = sorted(range(count), key=p_values.__getitem__, reverse=True)
    for place, index in enumerate(falling):
        least = min(least, p_values[index] * count / (count - place))
        adjusted[index] = least
    return adjusted


def pool_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over all values behind several estimates of one quantity, as if they had been one
    sample.

    Squares within the estimates and between their means add up to those of the whole sample
    (analysis of variance, as in `mean_within`), on one degree of freedom less than it has values
    or, for values within groups, than is left. Estimates must have a count. Where one of several
    values has no variance, since host noise allows it none, the mean has none either.
    """
    counts = [estimate.count or 1 for estimate in estimates]
    pairs = list(zip(counts, estimates, strict=True))
    total = sum(counts)
    log = sum(count * estimate.log for count, estimate in pairs) / total
    squares, degrees = 0.0, len(estimates) - 1.0
    for count, estimate in pairs:
        squares += count * (estimate.log - log) ** 2
        if estimate.variance is not None:
            squares += estimate.variance * count * estimate.degrees
            degrees += estimate.degrees
        elif count > 1:
            return Estimate(log, count=total)
    if not degrees:
        return Estimate(log, count=total)
    return Estimate(log, squares / degrees / total, degrees, total)


def geomean(ratios: Sequence[float]) -> float:
    """Geometric mean: the one mean under which normalised ratios rank the same from either side.

    Fleming and Wallace, "How not to lie with statistics", CACM 29(3), 1986.
    """
    return geometric_mean(ratios)


def geomean_of_these_models(estimates: Sequence[Estimate]) -> Estimate:
    """Geometric mean over fixed models, whose own measurement errors are the only ones.

    The variances of the means add up; degrees of freedom after Satterthwaite, Biometrics Bulletin
    2(6), 1946. Without a variance when any model has none.
    """
    log = fmean(estimate.log for estimate in estimates)
    return _sum_of_independent(log, [(1 / len(estimates), estimate) for estimate in estimates])


def weighted(amp: float, fp32: float) -> float:
    """0.75 AMP + 0.25 fp32, an arithmetic mean of two geometric means, as the PyTorch 2.0
    announcement has it.
    """
    return AMP_SHARE * amp + FP32_SHARE * fp32


def weighted_of_these_models(amp: Estimate, fp32: Estimate) -> Estimate:
    """`weighted` with the error of its two independent parts, to first order.

    d log W = sum over both of share * G / W * d log G (the delta method).
    """
    total = weighted(amp.ratio, fp32.ratio)
    parts = [(AMP_SHARE * amp.ratio / total, amp), (FP32_SHARE * fp32.ratio / total, fp32)]
    return _sum_of_independent(math.log(total), parts)


def predict_new_model(values: Sequence[float]) -> Estimate:
    """The `weighted` value that one more model would get, if the models at hand are a sample of its
    kind.

    Each model has its own weighted value; one more is predicted from the logs of these `values`.
    `variance` is that of mean minus new value, s^2 * (1 + 1/n) on n - 1 degrees of freedom: Hahn
    and Meeker, Statistical Intervals, 1991, chapter 4.
    """
    mean = mean_of_logs(list(map(math.log, values)))
    if mean.variance is None:
        return mean
    return Estimate(mean.log, mean.variance * (len(values) + 1), mean.degrees)


class Prior(NamedTuple):
    """What many variances say about one more: `variance`, as sure as a sample with `degrees`
    degrees of freedom.
    """

    variance: float
    degrees: float  # infinite when the variances differ no more than by chance


def moderate_variances(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Draw the variances of estimates towards what all of them have in common: the moderated t.
    Means stay.

    The variance s^2 of one value, on d degrees of freedom, becomes (d0 * s0^2 + d * s^2) / (d0 + d)
    on d0 + d, where the prior s0^2, d0 is fitted to all variances: Smyth, "Linear models and
    empirical Bayes methods for assessing differential expression in microarray experiments", Stat.
    Appl. Genet. Mol. Biol. 3(1), 2004, sections 3 and 6.2. Degrees stop at the sum of all
    estimates' degrees, as in limma, or an infinite d0 would promise too much. Estimates without a
    variance stay as they are, and so do all of them where every variance is 0.
    """
    variances = []
    degrees = []
    for estimate in estimates:
        if estimate.variance is not None and estimate.count is not None:
            variances.append(estimate.variance * estimate.count)
            degrees.append(estimate.degrees)
    if len(variances) < 2 or not any(variances):
        return list(estimates)
    prior = fit_prior(variances, degrees)
    max_degrees = sum(degrees)
    moderated = []
    for estimate in estimates:
        found = estimate
        if estimate.variance is not None and estimate.count is not None:
            total = prior.degrees + estimate.degrees
            share = estimate.degrees / total  # the weight of the sample's own variance
            own = share * (estimate.variance * estimate.count)
            new = (own + (1 - share) * prior.variance) / estimate.count
            found = replace(estimate, variance=new, degrees=min(total, max_degrees))
        moderated.append(found)
    return moderated


def fit_prior(variances: Sequence[float], degrees: Sequence[float]) -> Prior:
    """Fit d0 and s0^2 by the first two moments of log s^2 (Smyth 2004, section 6.2)."""
    from scipy.special import polygamma, psi

    least = MIN_VARIANCE * median(filter(None, variances))
    logs = []
    by_chance = []
    for found, found_degrees in zip(variances, degrees, strict=True):
        half = found_degrees / 2
        logs.append(math.log(max(found, least)) - float(psi(half)) + math.log(half))
        by_chance.append(float(polygamma(1, half)))
    excess = variance(logs) - fmean(by_chance)
    if excess <= 0:
        return Prior(math.exp(fmean(logs)), math.inf)
    prior_half = inverse_trigamma(excess)
    log = fmean(logs) + float(psi(prior_half)) - math.log(prior_half)
    return Prior(math.exp(log), 2 * prior_half)


def inverse_trigamma(value: float) -> float:
    """The y with trigamma(y) = value > 0, by Newton's method on 1 / trigamma (Smyth 2004,
    appendix).
    """
    from scipy.special import polygamma

    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, y))
        y += trigamma * (1 - trigamma / value) / float(polygamma(2, y))
    return y


def _sum_of_independent(log: float, parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Build the estimate of a sum of independent parts, each with its factor; it has a variance if
    all of them have.
    """
    total = squares_per_degree = degrees = 0.0
    for factor, estimate in parts:
        if estimate.variance is None:
            return Estimate(log)
        square = factor**2 * estimate.variance
        total += square
        squares_per_degree += square**2 / estimate.degrees
        degrees += estimate.degrees
    if total == 0:
        return Estimate(log, 0.0, degrees)
    return Estimate(log, total, total**2 / squares_per_degree)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are there; None where none is."""
    present = [value for value in values if value is not None]
    return median(present) if present else None
