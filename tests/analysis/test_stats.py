from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import polygamma

from sweeper.analysis import stats
from sweeper.analysis.stats import Estimate, Interval


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (4, 2.7764),
        (9, 2.2622),
        (30, 2.0423),
        (1e9, 1.9600),
        (math.inf, 1.9600),
    ],
)
def test_t_quantile_equals_the_printed_tables(degrees: float, quantile: float) -> None:
    assert stats.t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_interval_of_three_values_by_hand() -> None:
    # Mean 2, variance 1, variance of the mean 1/3 on 2 degrees: 2 +- 4.302653 / sqrt(3) = 2 +-
    # 2.484138.
    estimate = stats.mean_of_logs([1.0, 2.0, 3.0])
    assert estimate == Estimate(2.0, pytest.approx(1 / 3), 2, 3)
    interval = estimate.interval()
    assert interval is not None
    assert math.log(interval.low) == pytest.approx(2 - 2.484138, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(2 + 2.484138, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert stats.mean_of_logs([0.5]) == Estimate(0.5, count=1)
    assert stats.mean_of_logs([0.5]).interval() is None


def test_equal_values_have_an_interval_without_width() -> None:
    assert stats.mean_of_logs([0.0, 0.0]).interval() == Interval(1.0, 1.0)
    same = stats.geomean_of_these_models([stats.mean_of_logs([0.0, 0.0])] * 2)
    assert same.interval() == Interval(1.0, 1.0)


def test_geomean_ranks_alike_from_either_side() -> None:
    assert stats.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert stats.geomean([0.5, 0.125]) == pytest.approx(1 / 4.0)
    assert stats.geomean([3.0]) == pytest.approx(3.0)


def test_geomean_of_these_models_after_satterthwaite_by_hand() -> None:
    # Two models: variances of the means 0.04 on 2 degrees and 0.01 on 4; the mean has a quarter of
    # each, 0.01 + 0.0025. Degrees: 0.0125^2 / (0.01^2 / 2 + 0.0025^2 / 4) = 1.5625e-4 / (5e-5 +
    # 1.5625e-6) = 3.030303.
    estimate = stats.geomean_of_these_models([Estimate(0.2, 0.04, 2), Estimate(0.4, 0.01, 4)])
    assert estimate.log == pytest.approx(0.3)
    assert estimate.variance == pytest.approx(0.0125)
    assert estimate.degrees == pytest.approx(3.030303, abs=1e-6)


def test_geomean_with_one_model_measured_once_has_no_interval() -> None:
    assert stats.geomean_of_these_models([Estimate(0.2, 0.04, 2), Estimate(0.4)]).interval() is None


def test_weighted_is_three_quarters_amp_and_one_quarter_fp32() -> None:
    # the announcement's +51 % and +21 % make +43 %
    assert stats.weighted(1.51, 1.21) == pytest.approx(1.435)


def test_weighted_of_these_models_by_hand() -> None:
    # W = 0.75 * 2 + 0.25 * 4 = 2.5; shares 1.5 / 2.5 = 0.6 and 1.0 / 2.5 = 0.4;
    # variance 0.36 * 0.01 + 0.16 * 0.04 = 0.0036 + 0.0064 = 0.01;
    # degrees 0.01^2 / (0.0036^2 / 2 + 0.0064^2 / 2) = 2e-4 / 5.392e-5 = 3.709199.
    estimate = stats.weighted_of_these_models(
        Estimate(math.log(2), 0.01, 2), Estimate(math.log(4), 0.04, 2)
    )
    assert estimate.ratio == pytest.approx(2.5)
    assert estimate.variance == pytest.approx(0.01)
    assert estimate.degrees == pytest.approx(3.709199, abs=1e-6)


def test_mean_within_leaves_the_distance_of_groups_out_by_hand() -> None:
    # Squares about the means 1 and 10: 1 + 1 and 4 + 4 + 0; 10 / (5 - 2) is the variance of a
    # value, a fifth that of the mean, which is (0 + 2 + 8 + 12 + 10) / 5 = 6.4.
    estimate = stats.mean_within([[0.0, 2.0], [8.0, 12.0, 10.0]])
    assert estimate == Estimate(6.4, pytest.approx(10 / 3 / 5), 3, 5)


def test_mean_within_one_group_is_the_plain_mean() -> None:
    within, plain = stats.mean_within([[1.0, 2.0, 4.0]]), stats.mean_of_logs([1.0, 2.0, 4.0])
    assert within == Estimate(
        pytest.approx(plain.log), pytest.approx(plain.variance), plain.degrees, plain.count
    )


def test_mean_within_takes_a_group_of_one_without_learning_from_it() -> None:
    assert stats.mean_within([[0.0, 2.0], [7.0]]) == Estimate(3.0, pytest.approx(2 / 1 / 3), 1, 3)


def test_prediction_of_one_more_value_by_hand() -> None:
    # Mean 2, variance 1: one more lies within 4.302653 * sqrt(1 + 1/3) = 4.968275 of the mean.
    values = [math.exp(log) for log in (1.0, 2.0, 3.0)]
    interval = stats.predict_new_model(values).interval()
    assert interval is not None
    assert math.log(interval.low) == pytest.approx(2 - 4.968275, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(2 + 4.968275, abs=1e-6)


def test_a_new_model_is_predicted_from_the_logs_of_values() -> None:
    # logs ln 2 and ln 8, mean ln 4, s = sqrt(2) ln 2
    estimate = stats.predict_new_model([2.0, 8.0])
    assert estimate.ratio == pytest.approx(4)
    assert estimate.variance == pytest.approx(2 * math.log(2) ** 2 * 1.5)
    assert estimate.degrees == 1


def test_one_model_says_nothing_of_the_next() -> None:
    assert stats.predict_new_model([1.4]).interval() is None


@pytest.mark.parametrize(
    ("value", "y"), [(math.pi**2 / 6, 1.0), (math.pi**2 / 2, 0.5), (math.pi**2 / 6 - 1.25, 3.0)]
)
def test_inverse_trigamma_at_its_known_values(value: float, y: float) -> None:
    assert stats.inverse_trigamma(value) == pytest.approx(y, rel=1e-9)


@pytest.mark.parametrize("value", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_inverse_trigamma_over_its_range(value: float) -> None:
    assert polygamma(1, stats.inverse_trigamma(value)) == pytest.approx(value, rel=1e-8)


def test_prior_of_variances_that_do_not_differ_is_sure() -> None:
    # One half degree each: E log s^2 = log sigma^2 + psi(1) = log sigma^2 - 0.577216, so s0^2 = 4 *
    # exp(0.577216).
    prior = stats.fit_prior([4.0] * 8, [2.0] * 8)
    assert prior.degrees == math.inf
    assert prior.variance == pytest.approx(4 * math.exp(0.5772156649))


def test_prior_of_two_variances_by_hand() -> None:
    # Two degrees each; logs of s^2 are +-a about 0 with variance 2 a^2, and trigamma(1) = pi^2 / 6
    # is chance. Let the rest be trigamma(1) as well: a = pi / sqrt(6), d0 / 2 = 1; psi(d / 2) and
    # psi(d0 / 2) cancel, so s0^2 = 1.
    a = math.pi / math.sqrt(6)
    prior = stats.fit_prior([math.exp(a), math.exp(-a)], [2.0, 2.0])
    assert (prior.variance, prior.degrees) == (pytest.approx(1.0), pytest.approx(2.0))


def test_prior_is_found_again_in_simulated_variances() -> None:
    # sigma^2 is 0.5 * 6 / chi^2 with 6 degrees, s^2 is sigma^2 * chi^2 / d with d = 2 or 4.
    random = np.random.default_rng(4)
    degrees = np.repeat([2.0, 4.0], 20_000)
    variances = 0.5 * 6 / random.chisquare(6, degrees.size) * random.chisquare(degrees) / degrees
    prior = stats.fit_prior(variances.tolist(), degrees.tolist())
    assert prior.variance == pytest.approx(0.5, rel=0.03)
    assert prior.degrees == pytest.approx(6, rel=0.1)


def test_moderated_variances_lie_between_their_own_and_the_prior_by_hand() -> None:
    # As above the prior is 1 on 2 degrees; of one value (2 * e^a + 2 * 1) / 4, so (e^a + 1) / 2; of
    # a mean of three a third; 2 + 2 degrees, which is all that the two estimates have together.
    a = math.pi / math.sqrt(6)
    high, low = stats.moderate_variances(
        [Estimate(0.1, math.exp(a) / 3, 2, 3), Estimate(0.2, math.exp(-a) / 3, 2, 3)]
    )
    assert high == Estimate(0.1, pytest.approx((math.exp(a) + 1) / 6), pytest.approx(4.0), 3)
    assert low == Estimate(0.2, pytest.approx((math.exp(-a) + 1) / 6), pytest.approx(4.0), 3)


def test_moderated_variances_are_of_one_value_whatever_the_sample_sizes() -> None:
    # Equal variances of a value, but means of 2 and 8 values: an infinite d0 gives each s0^2 over
    # its own count.
    small, large = stats.moderate_variances(
        [Estimate(0.0, 1 / 2, 1, 2), Estimate(0.0, 1 / 8, 7, 8)]
    )
    assert small.variance is not None
    assert large.variance == pytest.approx(small.variance / 4)
    assert small.degrees == large.degrees == 8, "no more than both have together"


@pytest.mark.parametrize(
    "estimates",
    [
        [],
        [Estimate(0.1, 0.5, 2, 3)],
        [Estimate(0.1), Estimate(0.2)],
        [Estimate(0.1, 0.0, 2, 3), Estimate(0.2, 0.0, 2, 3)],
    ],
    ids=["none", "one", "without variance", "all zero"],
)
def test_what_cannot_be_moderated_stays_as_it_is(estimates: list[Estimate]) -> None:
    assert stats.moderate_variances(estimates) == estimates


def test_a_variance_of_zero_is_drawn_up_and_an_estimate_without_one_stays() -> None:
    zero, other, none = stats.moderate_variances(
        [Estimate(0.0, 0.0, 2, 3), Estimate(0.0, 0.3, 2, 3), Estimate(0.5)]
    )
    assert zero.variance is not None
    assert other.variance is not None
    assert 0 < zero.variance < other.variance
    assert none == Estimate(0.5)


REPEATS = 2000


def coverage(intervals: list[Interval | None], truth: float) -> float:
    return sum(found is not None and found.low <= truth <= found.high for found in intervals) / len(
        intervals
    )


@pytest.mark.parametrize("processes", [2, 3, 10])
def test_interval_of_a_trial_covers_the_truth_in_95_of_100(processes: int) -> None:
    logs = np.random.default_rng(1).normal(math.log(1.5), 0.05, (REPEATS, processes))
    assert 0.93 < coverage([stats.mean_of_logs(list(row)).interval() for row in logs], 1.5) < 0.97


def test_weighted_interval_for_these_models_covers_the_truth_in_95_of_100() -> None:
    # Four fixed models, three processes each, noise that differs between models.
    random = np.random.default_rng(2)
    amp, fp32, noise = (
        np.log([1.2, 1.5, 2.0, 1.1]),
        np.log([1.1, 1.2, 1.3, 0.9]),
        np.array([0.01, 0.05, 0.02, 0.03]),
    )
    truth = stats.weighted(math.exp(amp.mean()), math.exp(fp32.mean()))

    def measured(true_logs: np.ndarray) -> Estimate:
        processes = random.normal(true_logs[:, None], noise[:, None], (4, 3))
        return stats.geomean_of_these_models([stats.mean_of_logs(list(row)) for row in processes])

    intervals = [
        stats.weighted_of_these_models(measured(amp), measured(fp32)).interval()
        for _ in range(REPEATS)
    ]
    assert 0.93 < coverage(intervals, truth) < 0.97


def test_p_value_by_the_printed_tables() -> None:
    # Of Student's t on 4 degrees, 2.7764 leaves 2.5 % on each side.
    estimate = Estimate(2.7764, 1.0, 4)
    assert stats.p_value(estimate) == pytest.approx(0.05, abs=1e-5)
    assert stats.p_value(Estimate(-2.7764, 1.0, 4)) == pytest.approx(0.05, abs=1e-5)
    assert stats.p_value(Estimate(0.0, 1.0, 4)) == 1
    assert stats.p_value(Estimate(1.0)) is None


def test_equivalence_is_the_interval_of_90_percent_inside_the_margin() -> None:
    # 2.1318 leaves 5 % on one side on 4 degrees: 1 +- 2.1318 reaches 3.1318.
    estimate = Estimate(-1.0, 1.0, 4)
    assert stats.equivalence_p_value(estimate, 3.1318) == pytest.approx(0.05, abs=1e-5)
    assert (stats.equivalence_p_value(estimate, 0.5) or 0) > 0.5
    assert stats.equivalence_p_value(Estimate(0.0), 1.0) is None


@pytest.mark.parametrize(
    ("log", "differs", "equal"),
    [(0.0, 1.0, 0.0), (0.5, 0.0, 0.0), (1.0, 0.0, 0.5), (2.0, 0.0, 1.0)],
)
def test_without_scatter_tests_are_certain(log: float, differs: float, equal: float) -> None:
    estimate = Estimate(log, 0.0, 4)
    assert (stats.p_value(estimate), stats.equivalence_p_value(estimate, 1.0)) == (differs, equal)


def test_a_pool_with_an_estimate_whose_variance_is_refused_has_none_either() -> None:
    calm, noisy = stats.mean_of_logs([1.0, 2.0, 3.0]), Estimate(4.0, count=3)
    assert stats.pool_estimates([calm, noisy]) == Estimate(3.0, count=6)
    # a single value has none anyway
    assert stats.pool_estimates([calm, Estimate(2.0, count=1)]).variance is not None


def test_benjamini_hochberg_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5 by rank: 0.04, 0.04, 0.04, 0.5.
    assert stats.benjamini_hochberg([0.5, 0.01, 0.03, 0.02]) == pytest.approx(
        [0.5, 0.04, 0.04, 0.04]
    )
    assert stats.benjamini_hochberg([0.01, 0.9]) == pytest.approx([0.02, 0.9])
    assert stats.benjamini_hochberg([]) == []


def test_a_difference_counts_as_half_the_harmonic_mean_of_both() -> None:
    one, other = (
        stats.mean_of_logs([1.0, 2.0, 3.0]),
        stats.mean_of_logs([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    )
    assert stats.difference(one, other).count == pytest.approx(2)  # 1 / (1/3 + 1/6)
    assert stats.difference(one, Estimate(1.0, 1.0, 3)).count is None


def test_pooled_is_the_mean_of_one_large_sample() -> None:
    parts = [[0.1, 0.2, 0.15], [0.3, 0.25], [0.4]]
    found, whole = (
        stats.pool_estimates([stats.mean_of_logs(part) for part in parts]),
        stats.mean_of_logs([value for part in parts for value in part]),
    )
    assert found.log == pytest.approx(whole.log)
    assert found.variance == pytest.approx(whole.variance)
    assert (found.degrees, found.count) == (whole.degrees, whole.count)


def test_difference_of_two_means_after_welch_by_hand() -> None:
    # Variances 0.01 on 4 degrees and 0.03 on 2 add up; degrees: 0.04^2 / (0.01^2 / 4 + 0.03^2 / 2)
    # = 3.368421.
    found = stats.difference(Estimate(0.5, 0.01, 4, 5), Estimate(0.2, 0.03, 2, 3))
    assert found == Estimate(
        pytest.approx(0.3),
        pytest.approx(0.04),
        pytest.approx(3.368421, abs=1e-6),
        pytest.approx(1.875),
    )
    assert stats.difference(Estimate(0.5, 0.01, 4), Estimate(0.2, 0.03, 2, 3)).count is None
    assert stats.difference(Estimate(0.5), Estimate(0.2, 0.03, 2)).variance is None


def test_prior_of_two_variances_that_differ_by_its_equations() -> None:
    # Logs of 1 and 100 on 4 degrees, less psi(2) - ln 2: variance (ln 100)^2 / 2, of which
    # trigamma(2) is chance.
    found = stats.fit_prior([1.0, 100.0], [4.0, 4.0])
    half = found.degrees / 2
    assert float(polygamma(1, half)) == pytest.approx(
        math.log(100) ** 2 / 2 - float(polygamma(1, 2))
    )
    mean = math.log(10) - float(polygamma(0, 2)) + math.log(2)
    assert math.log(found.variance) == pytest.approx(
        mean + float(polygamma(0, half)) - math.log(half)
    )


def test_estimates_without_a_variance_or_without_a_count_are_not_moderated() -> None:
    known = [Estimate(0.0, 0.01, 2, 3), Estimate(0.0, 0.02, 2, 3)]
    odd = [Estimate(0.1, None, 2, 3), Estimate(0.1, 0.5, 2, None)]
    assert stats.moderate_variances([*known, *odd])[2:] == odd
    assert stats.moderate_variances([*known, *odd])[:2] == stats.moderate_variances(known)


def test_prior_of_variances_that_differ_less_than_by_chance_is_sure() -> None:
    # chance alone would spread their logs by trigamma(2), 0.64
    found = stats.fit_prior([1.0, 1.0], [4.0, 4.0])
    assert found.degrees == math.inf
    assert math.log(found.variance) == pytest.approx(math.log(2) - float(polygamma(0, 2)))


def test_variances_of_zero_count_as_a_share_of_the_median_of_the_others() -> None:
    found = stats.fit_prior([0.0, 0.0, 0.0, 1.0], [2.0] * 4)
    assert found == stats.fit_prior([1e-5, 1e-5, 1e-5, 1.0], [2.0] * 4)
