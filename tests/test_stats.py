from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper import stats
from sweeper.stats import Estimate, Interval


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1e9, 1.9600)]
)
def test_t_quantile_equals_the_printed_tables(degrees: float, quantile: float) -> None:
    assert stats.t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_interval_of_three_values_by_hand() -> None:
    # Mean 2, variance 1, variance of the mean 1/3 on 2 degrees: 2 +- 4.302653 / sqrt(3) = 2 +- 2.484138.
    estimate = stats.mean_of_logs([1.0, 2.0, 3.0])
    assert estimate == Estimate(2.0, pytest.approx(1 / 3), 2)
    interval = estimate.interval()
    assert interval is not None
    assert math.log(interval.low) == pytest.approx(2 - 2.484138, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(2 + 2.484138, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert stats.mean_of_logs([0.5]) == Estimate(0.5)
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
    # Two models: variances of the means 0.04 on 2 degrees and 0.01 on 4; the mean has a quarter of each, 0.01 + 0.0025.
    # Degrees: 0.0125^2 / (0.01^2 / 2 + 0.0025^2 / 4) = 1.5625e-4 / (5e-5 + 1.5625e-6) = 3.030303.
    estimate = stats.geomean_of_these_models([Estimate(0.2, 0.04, 2), Estimate(0.4, 0.01, 4)])
    assert estimate.log == pytest.approx(0.3)
    assert estimate.variance == pytest.approx(0.0125)
    assert estimate.degrees == pytest.approx(3.030303, abs=1e-6)


def test_geomean_with_one_model_measured_once_has_no_interval() -> None:
    assert stats.geomean_of_these_models([Estimate(0.2, 0.04, 2), Estimate(0.4)]).interval() is None


def test_weighted_is_three_quarters_amp_and_one_quarter_fp32() -> None:
    assert stats.weighted(1.51, 1.21) == pytest.approx(1.435)  # the announcement's +51 % and +21 % make +43 %


def test_weighted_of_these_models_by_hand() -> None:
    # W = 0.75 * 2 + 0.25 * 4 = 2.5; shares 1.5 / 2.5 = 0.6 and 1.0 / 2.5 = 0.4;
    # variance 0.36 * 0.01 + 0.16 * 0.04 = 0.0036 + 0.0064 = 0.01;
    # degrees 0.01^2 / (0.0036^2 / 2 + 0.0064^2 / 2) = 2e-4 / 5.392e-5 = 3.709199.
    estimate = stats.weighted_of_these_models(Estimate(math.log(2), 0.01, 2), Estimate(math.log(4), 0.04, 2))
    assert estimate.ratio == pytest.approx(2.5)
    assert estimate.variance == pytest.approx(0.01)
    assert estimate.degrees == pytest.approx(3.709199, abs=1e-6)


def test_weighted_of_sampled_models_takes_the_precisions_of_a_model_together() -> None:
    # Geomeans 1 and 1, so the influence of a model is 0.75 amp + 0.25 fp32 of its logs.
    together = stats.weighted_of_sampled_models([0.4, -0.4], [0.4, -0.4])
    against = stats.weighted_of_sampled_models([0.4, -0.4], [-0.4, 0.4])
    assert together.ratio == against.ratio == pytest.approx(1.0)
    assert together.variance == pytest.approx(0.4**2)  # two values, 0.8 apart: s^2 / 2 = 0.8^2 / 4
    assert against.variance == pytest.approx(0.2**2)
    assert (together.degrees, stats.weighted_of_sampled_models([0.4], [0.1]).interval()) == (1, None)


REPEATS = 4000


def coverage(intervals: list[Interval | None], truth: float) -> float:
    return sum(found is not None and found.low <= truth <= found.high for found in intervals) / len(intervals)


@pytest.mark.parametrize("processes", [2, 3, 10])
def test_interval_of_a_trial_covers_the_truth_in_95_of_100(processes: int) -> None:
    logs = np.random.default_rng(1).normal(math.log(1.5), 0.05, (REPEATS, processes))
    assert 0.93 < coverage([stats.mean_of_logs(list(row)).interval() for row in logs], 1.5) < 0.97


def test_weighted_interval_for_these_models_covers_the_truth_in_95_of_100() -> None:
    # Four fixed models, three processes each, noise that differs between models.
    random = np.random.default_rng(2)
    amp, fp32, noise = np.log([1.2, 1.5, 2.0, 1.1]), np.log([1.1, 1.2, 1.3, 0.9]), np.array([0.01, 0.05, 0.02, 0.03])
    truth = stats.weighted(math.exp(amp.mean()), math.exp(fp32.mean()))

    def measured(true_logs: np.ndarray) -> Estimate:
        processes = random.normal(true_logs[:, None], noise[:, None], (4, 3))
        return stats.geomean_of_these_models([stats.mean_of_logs(list(row)) for row in processes])

    intervals = [stats.weighted_of_these_models(measured(amp), measured(fp32)).interval() for _ in range(REPEATS)]
    assert 0.93 < coverage(intervals, truth) < 0.97


def test_weighted_interval_for_a_sample_of_models_covers_the_population_in_95_of_100() -> None:
    # Models drawn from a population in which the two precisions go together.
    random = np.random.default_rng(3)
    truth = stats.weighted(1.5, 1.2)
    common = random.normal(0, 0.2, (REPEATS, 12))
    amp = math.log(1.5) + common + random.normal(0, 0.1, common.shape)
    fp32 = math.log(1.2) + common / 2 + random.normal(0, 0.05, common.shape)
    intervals = [stats.weighted_of_sampled_models(list(a), list(f)).interval() for a, f in zip(amp, fp32, strict=True)]
    assert 0.93 < coverage(intervals, truth) < 0.97
