import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from surefoot.evaluation.bootstrap import Draw
from surefoot.metrics.intervals import (
    UNKNOWN,
    Interval,
    Proportion,
    StandardError,
    added,
    binomial_quantile,
    centred_interval,
    clopper_pearson,
    difference_of_proportions,
    error_within,
    sign_flip,
)
from tests.evaluation.counts import upper


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 50), (3, 50), (50, 50), (171, 2034)])
def test_clopper_pearson_agrees_with_scipy(k, n):
    exact = binomtest(k, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(k, n) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_binomial_quantiles_agree_with_scipy():
    rng = np.random.default_rng(0)
    near_one, near_zero = 1 - 10.0 ** -rng.uniform(1, 16, 200), 10.0 ** -rng.uniform(1, 16, 200)
    p = np.concatenate([rng.random(1000), near_one, near_zero, [0, 1]])
    n = rng.integers(1, 3000, len(p)).astype(float)
    for q in (0.025, 0.975):
        assert np.array_equal(binomial_quantile(q, n, p), stats.binom.ppf(q, n, p))


def test_interval_covers_a_mean_at_its_stated_rate():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        sample = rng.exponential(size=100)
        (counts,) = Draw.of(100, None, resamples=200, rng=rng).counts()
        draws = counts @ sample / 100
        interval = centred_interval(float(sample.mean()), draws, (0, np.inf))
        covered += interval.low <= 1 <= interval.high
    assert 0.88 < covered / 300 < 0.98


def test_interval_holds_its_value_and_keeps_to_its_bounds():
    interval = centred_interval(0.01, np.linspace(0.05, 0.25, 100), (0, 1))
    assert interval.low == 0
    assert interval.value == 0.01
    assert np.isnan(centred_interval(float("nan"), np.ones(5), (0, 1)).low)
    assert np.isnan(centred_interval(0.5, np.full(5, np.nan), (0, 1)).low)


def interval(k, n):
    count = Proportion.of(k, n)
    return Interval(count.value, count.low, count.high)


@pytest.mark.parametrize(("k", "n"), [(0, 60), (1, 60), (7, 60), (60, 60)])
def test_some_less_none_and_none_less_some_its_mirror(k, n):
    exact = binomtest(k, n).proportion_ci(0.95, method="exact")
    gap = difference_of_proportions(interval(k, n), interval(0, 40))
    below = math.sqrt((k / n - exact.low) ** 2 + upper(40) ** 2)
    assert (gap.value, gap.low, gap.high) == pytest.approx((k / n, k / n - below, exact.high))
    mirror = difference_of_proportions(interval(0, 40), interval(k, n))
    assert (mirror.value, mirror.low, mirror.high) == pytest.approx((-gap.value, -gap.high, -gap.low))


def test_errors_of_independent_means_add_to_welchs():
    one, other = (1.0, 1.4, 0.9, 1.3, 1.1), (0.8, 1.3, 2.0)
    errors = [StandardError(np.std(v, ddof=1) / len(v) ** 0.5, len(v) - 1) for v in (one, other)]
    welch = stats.ttest_ind(one, other, equal_var=False)
    both = added(*errors)
    assert both.freedom == pytest.approx(welch.df)
    ends = welch.confidence_interval(0.95)
    interval = both.around(np.mean(one) - np.mean(other))
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert added(errors[0], UNKNOWN).margin == pytest.approx(errors[0].margin)
    assert math.isnan(added(UNKNOWN).margin)
    assert StandardError.of_margin(errors[0].margin, 4).value == pytest.approx(errors[0].value)


def test_the_error_within_groups_is_that_of_images_drawn_within_each():
    rng = np.random.default_rng(0)
    sizes = (30, 50, 80)
    group_of = np.repeat(np.arange(3), sizes)
    values = rng.exponential(size=160) + np.array([0.0, 5.0, -3.0])[group_of]
    parts = [values[group_of == group] for group in range(3)]
    sums = [sum(rng.choice(part, len(part)).sum() for part in parts) for _ in range(20_000)]
    error = error_within(values, group_of)
    assert error.freedom == 157
    assert error.value == pytest.approx(np.std(sums), rel=0.03)
    assert error_within(values, np.zeros(160, dtype=int)).value == pytest.approx(
        160**0.5 * values.std(ddof=1)
    )
    assert math.isnan(error_within(values[:3], np.arange(3)).value)  # one image in each
    mixed = error_within(np.array([1.0, 2.0, 7.0]), np.array([0, 0, 4]))  # a group of one adds nothing
    assert (mixed.value, mixed.freedom) == (pytest.approx(1.0), 1)


@pytest.mark.parametrize("groups", [2, 5, 8, 12, 20])
def test_the_sign_flip_test_is_scipys(groups):
    totals = np.random.default_rng(groups).normal(0.4, 1.0, groups)
    zeros = np.zeros(groups)
    exact = stats.permutation_test(
        (totals, zeros),
        lambda a, b, axis: (a - b).sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**groups if groups <= 12 else 20_000,
        rng=np.random.default_rng(1),
    )
    tolerance = 1e-12 if groups <= 12 else 0.02
    assert sign_flip(totals) == pytest.approx(exact.pvalue, abs=tolerance)
    assert sign_flip(-totals) == pytest.approx(exact.pvalue, abs=tolerance)
    assert sign_flip(totals, seed=1) == pytest.approx(exact.pvalue, abs=tolerance)


def test_the_sign_flip_test_of_nothing():
    assert sign_flip([]) == sign_flip([0.0, 0.0]) == 1.0
    assert math.isnan(sign_flip([1.0, math.nan]))


def test_signs_are_drawn_in_parts_where_there_are_many_groups(monkeypatch):
    totals = np.random.default_rng(0).normal(0.1, 1.0, 40)
    whole = sign_flip(totals, seed=5)
    monkeypatch.setattr("surefoot.metrics.intervals.FLIPPED_AT_ONCE", 1000)
    assert sign_flip(totals, seed=5) == whole
