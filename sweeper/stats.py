"""Floats in, floats out: intervals and geometric means, every formula with its source.

Everything works on logs of ratios, where a speedup of 2 and a slowdown of 1/2 are equally far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

CONFIDENCE = 0.95
AMP_SHARE = 0.75  # the weighting of the PyTorch 2.0 announcement, https://pytorch.org/get-started/pytorch-2.x/
FP32_SHARE = 0.25


@dataclass(frozen=True)
class Interval:
    """Two-sided confidence interval of a ratio."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A mean log ratio, the variance of that mean and its degrees of freedom (None when one sample is all there is)."""

    log: float
    variance: float | None = None
    degrees: float | None = None

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    def interval(self) -> Interval | None:
        """Student's t interval, back on the scale of ratios; None without a variance."""
        if self.variance is None or self.degrees is None:
            return None
        half = t_quantile(self.degrees) * math.sqrt(self.variance)
        return Interval(math.exp(self.log - half), math.exp(self.log + half))


def t_quantile(degrees: float) -> float:
    """The factor of a two-sided 95 % interval with `degrees` degrees of freedom (Student, Biometrika 6, 1908)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def mean_of_logs(logs: Sequence[float]) -> Estimate:
    """The mean of independent log ratios with the variance of that mean, s^2 / n on n - 1 degrees of freedom."""
    if len(logs) < 2:
        return Estimate(fmean(logs))
    return Estimate(fmean(logs), variance(logs) / len(logs), len(logs) - 1)


def geomean(ratios: Sequence[float]) -> float:
    """Geometric mean: the one mean under which normalised ratios rank the same from either side.

    Fleming and Wallace, "How not to lie with statistics", CACM 29(3), 1986.
    """
    return math.exp(fmean(math.log(ratio) for ratio in ratios))


def geomean_of_these_models(estimates: Sequence[Estimate]) -> Estimate:
    """Geometric mean over fixed models, whose own measurement errors are the only ones.

    The variances of the means add up; degrees of freedom after Satterthwaite, Biometrics Bulletin 2(6), 1946.
    Without a variance when any model has none.
    """
    log = fmean(estimate.log for estimate in estimates)
    return _sum_of_independent(log, [(1 / len(estimates), estimate) for estimate in estimates])


def weighted(amp: float, fp32: float) -> float:
    """0.75 AMP + 0.25 fp32, an arithmetic mean of two geometric means, as the PyTorch 2.0 announcement has it."""
    return AMP_SHARE * amp + FP32_SHARE * fp32


def weighted_of_these_models(amp: Estimate, fp32: Estimate) -> Estimate:
    """`weighted` with the error of its two independent parts, to first order.

    d log W = sum over both of share * G / W * d log G (the delta method).
    """
    total = weighted(amp.ratio, fp32.ratio)
    parts = [(AMP_SHARE * amp.ratio / total, amp), (FP32_SHARE * fp32.ratio / total, fp32)]
    return _sum_of_independent(math.log(total), parts)


def weighted_of_sampled_models(amp_logs: Sequence[float], fp32_logs: Sequence[float]) -> Estimate:
    """`weighted` with the error from choosing the models, taken as a sample: where it would lie over all such models.

    `amp_logs` and `fp32_logs` [models] belong to the same models in the same order: the two are correlated, so the
    influence of each model on log W is summed first and its scatter taken over models (the delta method).
    """
    amp, fp32 = math.exp(fmean(amp_logs)), math.exp(fmean(fp32_logs))
    total = weighted(amp, fp32)
    influences = [
        (AMP_SHARE * amp * a + FP32_SHARE * fp32 * f) / total for a, f in zip(amp_logs, fp32_logs, strict=True)
    ]
    scatter = mean_of_logs(influences)
    return Estimate(math.log(total), scatter.variance, scatter.degrees)


def _sum_of_independent(log: float, parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    squares: list[tuple[float, float]] = []
    for factor, estimate in parts:
        if estimate.variance is None or estimate.degrees is None:
            return Estimate(log)
        squares.append((factor**2 * estimate.variance, estimate.degrees))
    total = sum(square for square, _ in squares)
    if total == 0:
        return Estimate(log, 0.0, sum(degrees for _, degrees in squares))
    degrees = total**2 / sum(square**2 / degrees for square, degrees in squares)
    return Estimate(log, total, degrees)
