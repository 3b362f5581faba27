"""Running moments (Welford 1962, in the batched form of Chan et al. 1983), confidence intervals and p-values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from clearhead.errors import InputError

Array = NDArray[np.float64]
Freedom = Array | NDArray[np.int64] | np.int64 | int | float
"""Degrees of freedom: of one number or of each number of an array, whole or estimated."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed range of values."""

    low: float
    high: float


class RunningMoments:
    """Count, mean and variance of a stream of arrays, entry by entry; entries that are not finite are skipped.

    Differences above 1e154 have no squares in double precision; the standard error is then infinite and the p-value 1.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.mean: Array = np.zeros(shape)
        self._squares: Array = np.zeros(shape)

    def add(self, sample: Array) -> None:
        """Add one sample of the given shape."""
        finite = np.isfinite(sample)
        self.count += finite
        step = np.where(finite, sample - self.mean, 0.0)
        self.mean += step / np.maximum(self.count, 1)
        with np.errstate(over="ignore"):  # infinite on purpose: losses of saturated heads reach 1e200
            self._squares += step * np.where(finite, sample - self.mean, 0.0)

    def merge(self, other: "RunningMoments") -> None:
        """Add the samples of other moments of the same shape (Chan, Golub and LeVeque 1983)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        step = other.mean - self.mean
        self.mean = self.mean + step * share
        with np.errstate(over="ignore"):  # infinite on purpose, but zero without samples before
            self._squares = self._squares + other._squares + step * (step * self.count * share)
        self.count = count

    def state(self) -> dict[str, Any]:
        """Return copies of the sums, from which `from_state` restores every bit."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "squares": self._squares.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RunningMoments":
        """Return the moments that `state` was taken of."""
        moments = cls(state["count"].shape)
        moments.count, moments.mean, moments._squares = (state[name].copy() for name in ("count", "mean", "squares"))
        return moments

    def standard_error(self) -> Array:
        """Return the standard error of the mean; NaN for fewer than two samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.count > 1, np.sqrt(self._squares / (self.count - 1) / self.count), np.nan)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return Student's confidence interval of the mean as (low, high); NaN for fewer than two samples."""
        quantile = student_quantile(0.5 + level / 2, np.maximum(self.count - 1, 1))
        half = quantile * self.standard_error()
        return self.mean - half, self.mean + half

    def p_value(self, resolution: Array | float = 0.0) -> Array:
        """Return the two-sided p-value of Student's test that the mean is zero: see `difference_p_value`."""
        return difference_p_value(self.mean, self.standard_error(), self.count - 1, resolution)


def difference_p_value(
    difference: Array | float,
    error: Array | float,
    freedom: Freedom,
    resolution: Array | float = 0.0,
) -> Array:
    """Return the two-sided p-value of Student's test that a difference with this standard error is zero.

    resolution: the smallest difference between two samples that arithmetic resolves

    NaN for less than one degree of freedom. A spread within the resolution is none. Then p is 1 if the difference is
    within the resolution too, and NaN if not: it is unknown what another sample would be.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * student_tail(np.abs(np.divide(difference, error)), np.maximum(freedom, 1))
        tied = np.where(np.abs(difference) <= resolution, 1.0, np.nan)
        p = np.where(no_spread(error, freedom, resolution), tied, p)
    return np.where((np.asarray(freedom) >= 1) & ~np.isnan(error), p, np.nan)


def no_spread(error: Array | float, freedom: Freedom, resolution: Array | float) -> NDArray[np.bool_]:
    """Return whether samples with this standard error of their mean spread by no more than the resolution."""
    return np.asarray(error <= resolution / np.sqrt(np.maximum(freedom, 0) + 1.0))


def student_tail(t: Array | float, freedom: Freedom) -> Array | float:
    """Return how often Student's distribution exceeds t: scipy.stats takes forty times as long for one number."""
    tail: Array | float = special.stdtr(freedom, -t)
    return tail


def student_quantile(p: float, freedom: Freedom) -> Array | float:
    """Return what Student's distribution stays below with probability p."""
    quantile: Array | float = special.stdtrit(freedom, p)
    return quantile


def false_discovery_rate(p_values: Array) -> Array:
    """Return p-values adjusted to control the false discovery rate (Benjamini and Hochberg 1995); NaN stays NaN."""
    adjusted = np.full(p_values.shape, np.nan)
    known = np.isfinite(p_values)
    if not ((p_values[known] >= 0) & (p_values[known] <= 1)).all():
        raise InputError("expected p-values between 0 and 1, or NaN")
    if known.any():
        adjusted[known] = stats.false_discovery_control(p_values[known])
    return adjusted


def prediction_p_value(value: float, samples: Array, *, error: float = 0.0) -> float:
    """Return the two-sided p-value that one more normal sample lies as far out as `value` (Student's test).

    error: standard error of the value itself, added to the spread of the samples

    NaN for fewer than two samples; without any spread as in `difference_p_value`.
    """
    spread = prediction_error(samples, error=error)
    return float(difference_p_value(value - float(samples.mean()), spread, len(samples) - 1))


def prediction_error(samples: Array, *, error: float = 0.0) -> float:
    """Return the standard error of a value that is one more of the samples, minus their mean; NaN for fewer than two.

    error: standard error of the value itself
    """
    if len(samples) < 2:
        return math.nan
    return math.sqrt(float(samples.var(ddof=1)) * (1 + 1 / len(samples)) + error**2)


def evenly_spaced(samples: Array, *, limit: int = 40) -> tuple[float, ...]:
    """Return the samples in ascending order; of more than `limit`, as many evenly spaced quantiles."""
    finite = np.sort(samples[np.isfinite(samples)])
    if len(finite) > limit:
        finite = np.quantile(finite, (np.arange(limit) + 0.5) / limit)
    return tuple(float(sample) for sample in finite)


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    r"""Return the confidence interval of a proportion (Wilson 1927).

    It holds the p with \|\hat p - p\| <= z sqrt(p (1 - p) / n). It lies in [0, 1] and has positive length at both ends.
    """
    if trials < 1 or not 0 <= successes <= trials or successes != int(successes):
        raise InputError(f"expected 0 <= successes <= trials, whole numbers, at least one; got {successes} of {trials}")
    interval = stats.binomtest(int(successes), int(trials)).proportion_ci(level, method="wilson")
    return Interval(float(interval.low), float(interval.high))


def median_interval(values: Array, *, level: float = 0.95) -> Interval:
    """Return the distribution-free confidence interval of the median: two order statistics, by the binomial law.

    NaN where even the smallest and the largest value miss the median more often: for fewer than six values at 95 %.
    """
    if len(values) == 0:
        return Interval(math.nan, math.nan)
    interval = stats.quantile_test(values, p=0.5).confidence_interval(level)
    return Interval(float(interval.low), float(interval.high))
