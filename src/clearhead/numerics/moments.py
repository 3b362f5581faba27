"""Mean and spread of a stream, without keeping the stream (Welford 1962, in the batched form of Chan et al. 1983)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from clearhead.errors import InputError

__all__ = ["Array", "Interval", "RunningMoments", "false_discovery_rate", "prediction_p_value"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed range of values."""

    low: float
    high: float


class RunningMoments:
    """Count, mean and variance of arrays of one shape, entry by entry; entries that are not finite are left out."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.mean: Array = np.zeros(shape)
        self._squares: Array = np.zeros(shape)

    def add(self, sample: Array) -> None:
        """Take one sample of the given shape."""
        finite = np.isfinite(sample)
        self.count += finite
        step = np.where(finite, sample - self.mean, 0.0)
        self.mean += step / np.maximum(self.count, 1)
        self._squares += step * np.where(finite, sample - self.mean, 0.0)

    def standard_error(self) -> Array:
        """Standard error of the mean; NaN where fewer than two samples were seen."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.count > 1, np.sqrt(self._squares / (self.count - 1) / self.count), np.nan)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Student's interval of the mean, as (low, high); NaN where fewer than two samples were seen."""
        quantile = stats.t.ppf(0.5 + level / 2, np.maximum(self.count - 1, 1))
        half = quantile * self.standard_error()
        return self.mean - half, self.mean + half

    def p_value(self) -> Array:
        """Two-sided p-value of Student's test that the mean is zero; NaN where fewer than two samples were seen.

        Samples without spread decide at once: 1 where their mean is zero, 0 where it is not.
        """
        error = self.standard_error()
        with np.errstate(invalid="ignore", divide="ignore"):
            p = 2 * stats.t.sf(np.abs(self.mean / error), np.maximum(self.count - 1, 1))
        p = np.where(error == 0, np.where(self.mean == 0, 1.0, 0.0), p)
        return np.where(self.count > 1, p, np.nan)


def false_discovery_rate(p_values: Array) -> Array:
    """Adjusted p-values by which to control the share of false discoveries (Benjamini and Hochberg 1995); NaN stays."""
    adjusted = np.full(p_values.shape, np.nan)
    known = np.isfinite(p_values)
    if not ((p_values[known] >= 0) & (p_values[known] <= 1)).all():
        raise InputError("expected p-values between 0 and 1, or NaN")
    if known.any():
        adjusted[known] = stats.false_discovery_control(p_values[known])
    return adjusted


def prediction_p_value(value: float, drawn: Array, *, error: float = 0.0) -> float:
    """Two-sided p-value that one more draw would lie as far out as `value`, if draws are normal (Student's test).

    error: standard error of the value itself, beside which draws spread; NaN of fewer than two draws
    """
    if len(drawn) < 2:
        return float("nan")
    variance = float(drawn.var(ddof=1)) * (1 + 1 / len(drawn))
    spread = float(np.sqrt(variance + error**2))
    apart = abs(value - float(drawn.mean()))
    if spread == 0:
        return float(apart == 0)
    return float(2 * stats.t.sf(apart / spread, len(drawn) - 1))
