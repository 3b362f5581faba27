import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clearhead.numerics.moments import (
    RunningMoments,
    false_discovery_rate,
    median_interval,
    prediction_error,
    prediction_p_value,
)

EPSILON = np.finfo(np.float64).eps


def normal_samples(seed: int, samples: int, *, offset: float = 0.0, spread: float = 1.0) -> np.ndarray:
    return offset + spread * np.random.default_rng(seed).standard_normal((samples, 3, 5))


def moments_of(data: np.ndarray) -> RunningMoments:
    moments = RunningMoments(data.shape[1:])
    for sample in data:
        moments.add(sample)
    return moments


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.integers(2, 101), st.sampled_from([0.0, 1.0, 1e3]), st.sampled_from([1e-3, 1.0, 1e6]))
def test_running_moments_equal_those_of_all_samples(seed: int, samples: int, offset: float, spread: float) -> None:
    data = normal_samples(seed, samples, offset=offset, spread=spread)
    moments = moments_of(data)
    size = offset + spread
    np.testing.assert_array_equal(moments.count, samples)
    np.testing.assert_allclose(moments.mean, data.mean(axis=0), atol=64 * EPSILON * size, rtol=0)
    want = data.std(axis=0, ddof=1) / np.sqrt(samples)
    np.testing.assert_allclose(moments.standard_error(), want, rtol=64 * EPSILON * samples * (size / spread))


def test_a_large_mean_does_not_hide_the_variance() -> None:
    data = normal_samples(7, 53, offset=1e9)
    naive = np.square(data).mean(axis=0) - np.square(data.mean(axis=0))
    want = data.var(axis=0)
    got = np.square(moments_of(data).standard_error()) * 52
    assert np.abs(got / want - 1).max() < 1e-6
    assert np.abs(naive / want - 1).max() > 1e-3


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_entries_that_are_not_finite_are_left_out(seed: int) -> None:
    data = normal_samples(seed, 17)
    holes = np.random.default_rng(seed + 1).choice([0, 1, 2, 3], p=[0.7, 0.1, 0.1, 0.1], size=data.shape)
    pierced = np.choose(
        holes, [data, np.full_like(data, np.nan), np.full_like(data, np.inf), np.full_like(data, -np.inf)]
    )
    moments = moments_of(pierced)
    for place in np.ndindex(3, 5):
        kept = data[:, *place][holes[:, *place] == 0]
        assert moments.count[place] == kept.size
        assert moments.mean[place] == pytest.approx(kept.mean() if kept.size else 0, abs=64 * EPSILON)
        want = kept.std(ddof=1) / np.sqrt(kept.size) if kept.size > 1 else np.nan
        assert moments.standard_error()[place] == pytest.approx(want, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("samples", [0, 1])
def test_fewer_than_two_samples_have_no_interval(samples: int) -> None:
    moments = moments_of(normal_samples(3, samples))
    low, high = moments.interval()
    for unknown in (moments.standard_error(), low, high, moments.p_value()):
        assert np.isnan(unknown).all()
    assert np.isfinite(moments_of(normal_samples(3, 2)).p_value()).all()


@pytest.mark.parametrize("level", [0.95, 0.5])
@pytest.mark.parametrize("samples", [2, 3, 7])
def test_the_interval_has_its_nominal_coverage(samples: int, level: float) -> None:
    """Coverage of the true mean over many draws, with the normal interval as a control."""
    draws = 20_011
    data = 7 + np.random.default_rng(samples).standard_normal((samples, draws))
    moments = moments_of(data)
    low, high = moments.interval(level)
    noise = 4 * np.sqrt(level * (1 - level) / draws)
    assert abs(np.mean((low <= 7) & (high >= 7)) - level) < noise
    half = stats.norm.ppf(0.5 + level / 2) * moments.standard_error()
    assert abs(np.mean(np.abs(moments.mean - 7) <= half) - level) > noise


def test_p_values_equal_those_of_the_t_test() -> None:
    data = normal_samples(5, 13, offset=0.9)
    np.testing.assert_allclose(moments_of(data).p_value(), stats.ttest_1samp(data, 0.0, axis=0).pvalue, rtol=1e-10)
    assert moments_of(data).p_value().min() < 0.05 < moments_of(data - data.mean(axis=0)).p_value().min()


def test_samples_without_variance_have_no_p_value_unless_they_are_zero() -> None:
    moments = moments_of(np.tile(np.array([0.0, 0.25]), (3, 1)))
    np.testing.assert_array_equal(moments.p_value(), [1.0, np.nan])


@pytest.mark.filterwarnings("error")
def test_values_whose_squares_overflow_have_an_infinite_standard_error() -> None:
    data = np.array([[1e160, 1.0], [3e160, 2.0], [2e160, 3.0]])
    moments, parts = moments_of(data), RunningMoments((2,))
    for part in (data[:2], data[2:]):
        parts.merge(moments_of(part))
    for sums in (moments, parts):
        np.testing.assert_allclose(sums.mean, [2e160, 2.0], rtol=4 * EPSILON)
        np.testing.assert_allclose(sums.standard_error(), [np.inf, 1 / np.sqrt(3)], rtol=8 * EPSILON)
        assert sums.p_value()[0] == 1


@pytest.mark.filterwarnings("error")
def test_large_values_without_spread_have_none_after_merging() -> None:
    moments = RunningMoments((1,))
    moments.merge(moments_of(np.full((3, 1), 1e200)))
    np.testing.assert_array_equal(moments.standard_error(), [0.0])


def benjamini_hochberg(p_values: list[float]) -> list[float]:
    """Each p-value times the number of tests over its rank, at most that of any larger p-value."""
    total = len(p_values)
    ranked = sorted(range(total), key=lambda i: p_values[i])
    adjusted, least = [0.0] * total, 1.0
    for rank in range(total, 0, -1):
        i = ranked[rank - 1]
        least = min(least, p_values[i] * total / rank)
        adjusted[i] = least
    return adjusted


@settings(max_examples=50)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=23))
def test_adjusted_p_values_equal_benjamini_hochberg(p_values: list[float]) -> None:
    adjusted = false_discovery_rate(np.array(p_values, dtype=np.float64))
    known = [p for p in p_values if p == p]
    want = iter(benjamini_hochberg(known))
    for p, got in zip(p_values, adjusted, strict=True):
        assert np.isnan(got) if p != p else got == pytest.approx(next(want), rel=1e-12)


def test_adjusted_p_values_keep_their_shape() -> None:
    p_values = np.array([[0.001, 0.02, np.nan], [0.03, 0.9, 0.04]])
    adjusted = false_discovery_rate(p_values)
    np.testing.assert_allclose(adjusted, [[0.005, 0.05, np.nan], [0.05, 0.9, 0.05]])


def test_the_false_discovery_rate_is_controlled_only_with_adjustment() -> None:
    """Of 101 tests 11 have an effect; measure the mean share of false discoveries over many draws."""
    rng = np.random.default_rng(11)
    shift = np.where(np.arange(101) < 11, 4.0, 0.0)
    shares, crude = [], []
    for _ in range(997):
        p_values = 2 * stats.norm.sf(np.abs(rng.standard_normal(101) + shift))
        for result, kept in ((false_discovery_rate(p_values) <= 0.05, shares), (p_values <= 0.05, crude)):
            kept.append(np.sum(result & (shift == 0)) / max(result.sum(), 1))
    assert np.mean(shares) < 0.055
    assert np.mean(crude) > 0.2


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("count", [0, 1, 5, 6, 8, 9, 37, 72, 500])
def test_the_interval_of_the_median_is_a_pair_of_order_statistics(count: int, level: float) -> None:
    values = np.random.default_rng(count).normal(size=count)
    result = median_interval(values, level=level)
    below = int(stats.binom.ppf((1 - level) / 2, count, 0.5)) if count else 0
    if below == 0:
        assert math.isnan(result.low)
        assert math.isnan(result.high)
        return
    ordered = np.sort(values)
    assert (result.low, result.high) == (ordered[below - 1], ordered[count - below])
    # The next narrower pair of order statistics covers the median less often than the level.
    assert 1 - 2 * stats.binom.cdf(below - 1, count, 0.5) >= level > 1 - 2 * stats.binom.cdf(below, count, 0.5)


@pytest.mark.parametrize("draws", [2, 5, 16])
def test_the_prediction_test_is_the_t_test_of_one_value(draws: int) -> None:
    samples, value = np.random.default_rng(draws).normal(0.3, 0.1, draws), 0.5
    assert prediction_p_value(value, samples) == pytest.approx(stats.ttest_ind([value], samples).pvalue)
    widened = prediction_error(samples, error=0.07)
    assert widened**2 == pytest.approx(prediction_error(samples) ** 2 + 0.07**2)
    expected = 2 * stats.t.sf(abs(value - samples.mean()) / widened, draws - 1)
    assert prediction_p_value(value, samples, error=0.07) == pytest.approx(expected)


def test_few_draws_have_no_prediction_test() -> None:
    assert np.isnan(prediction_p_value(0.5, np.array([0.2])))
    assert prediction_p_value(0.5, np.array([0.5, 0.5])) == 1
    assert np.isnan(prediction_p_value(0.6, np.array([0.5, 0.5])))
