"""Permutation tests of two arms: would the steps, dealt out to the arms at random, differ as much
as they do?

Where both arms draw from one distribution, every way of dealing the same steps out is as likely as
the real one. So the share of the ways (`splits`) that differ at least as much as the real one is a
p-value, whatever the distribution. Several tests of the same steps are held against the largest
difference that a split has in any test: that keeps the rate of false alarms over all tests, however
these depend on each other, and costs less power than Bonferroni (Westfall & Young, Resampling-Based
Multiple Testing, 1993, section 2.3: single-step maxT).
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, islice
from math import comb

import torch

LEAST_SHARE = 1e-12  # of all variation; the least that an arm counts as having


@cache
def list_splits(steps: int) -> torch.Tensor:
    """List the ways to deal steps out to two arms of so many, the real one first: bool [splits, 2 *
    steps], true: first arm.

    Of two splits that only swap the arms, one is listed.
    """
    count = comb(2 * steps, steps) // 2
    assert 0 < count <= 100_000, f"two arms of {steps} steps can be split in {count} ways"
    chosen = torch.tensor(list(islice(combinations(range(2 * steps), steps), count)))
    return torch.zeros(count, 2 * steps, dtype=torch.bool).scatter_(1, chosen, True)


def correlate(values: torch.Tensor, splits: torch.Tensor) -> torch.Tensor:
    """How far apart two arms' means are: |correlation| of value and arm, [splits, tests]; values:
    [steps, tests].

    Its square is t^2 / (t^2 + steps - 2), with Student's t of pooled variance. Without any
    variation it is 0.
    """
    centred = values - values.mean(0)
    sizes = centred.norm(dim=0)
    arms = splits.double() - splits[0].double().mean()
    arms = arms / arms[0].norm()
    correlations: torch.Tensor = arms @ torch.where(sizes > 0, centred / sizes, 0.0)
    return correlations.abs_()


def compare_spreads(vectors: Sequence[torch.Tensor], splits: torch.Tensor) -> torch.Tensor:
    """How different two arms' variances are: |log of their ratio|, [splits, tests]; vectors:
    [steps, elements].

    Each test is divided by its root mean square over the splits: by chance, the variances of long
    vectors differ less than the variances of single numbers do.
    """
    if not vectors:
        return splits.new_zeros(len(splits), 0, dtype=torch.float64)
    centred = [steps - steps.mean(0) for steps in vectors]
    products = torch.stack([steps @ steps.T for steps in centred])
    first, second = (_sum_variances(products, arms) for arms in (splits, ~splits))
    least = LEAST_SHARE * (first + second)
    logs = (torch.maximum(first, least) / torch.maximum(second, least)).log()
    return logs.abs() / logs.square().mean(0).sqrt().clamp(min=LEAST_SHARE)


def _sum_variances(products: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
    """The variances of vectors within an arm, summed over their elements: [splits, tests].

    `products` are the inner products of each test's vectors, [tests, steps, steps]. All tests share
    two products of matrices: of many small operations, each would wait for threads that have no
    core while compilers are at work.
    """
    arm, pairs = arms.double(), (arms[:, :, None] & arms[:, None, :]).flatten(1).double()
    sizes = arm.sum(1, keepdim=True)
    return (arm @ products.diagonal(dim1=1, dim2=2).T - pairs @ products.flatten(1).T / sizes) / (
        sizes - 1
    )


def find_largest(statistics: torch.Tensor) -> torch.Tensor:
    """The largest statistic that each split has in any test, [splits]."""
    if not statistics.shape[1]:
        return statistics.new_zeros(len(statistics))
    return statistics.amax(1)


def rank(statistics: torch.Tensor) -> torch.Tensor:
    """The p-value of each test, corrected for the number of tests: [tests]."""
    real = statistics[0] * (1 - 1e-9)  # statistics so near to each other differ by rounding
    return (find_largest(statistics)[:, None] >= real).double().mean(0)
