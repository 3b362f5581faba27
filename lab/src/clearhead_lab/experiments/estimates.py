"""Estimates over seeds: means with intervals, printed and plotted, paired differences of variants, and floors.

The floor of a study is what a model reaches that learned nothing. Variants that do not exceed it are no result.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import optimize, special, stats

from clearhead.numerics.moments import Interval, RunningMoments, false_discovery_rate, student_quantile
from clearhead.report.plots import Number, plot_band
from clearhead.report.tables import Field

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Verdict = Literal["higher", "lower", "not distinguishable", "spread unknown"]
LEVEL = 0.05
POWER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean over `count` seeds with its 95 % Student interval, which is None for fewer than two seeds."""

    mean: float
    interval: Interval | None
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the values with its interval; None without values."""
    if not values:
        return None
    moments = moments_of(values)
    low, high = (float(end[0]) for end in moments.interval())
    return Estimate(
        mean=float(moments.mean[0]), interval=Interval(low, high) if len(values) > 1 else None, count=len(values)
    )


def moments_of(values: Sequence[float]) -> RunningMoments:
    """Return the moments of the values."""
    moments = RunningMoments((1,))
    for value in values:
        moments.add(np.array([value]))
    return moments


def over_runs(values: Sequence[float | int | None]) -> Estimate | None:
    """Return the mean over the runs that have a value, with its interval; None without values."""
    return estimate([float(value) for value in values if value is not None])


def decimals(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` digits after the point and no leading zero, as in .993; "-" for None."""
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.endswith(f"1.{'0' * digits}") else text


def mean_of(value: Estimate | None) -> str:
    """Format the mean of an estimate."""
    return decimals(None if value is None else value.mean)


def plus_minus(value: Estimate | None) -> str:
    """Format the mean of an estimate with half the width of its interval; one of them from 10 on has one decimal."""
    if value is None or value.interval is None:
        return mean_of(value)
    half = (value.interval.high - value.interval.low) / 2
    digits = 3 if max(abs(value.mean), half) < 10 else 1
    return f"{decimals(value.mean, digits)} ± {decimals(half, digits)}"


def significant(value: Estimate | None) -> str:
    """Format the mean of an estimate with three significant digits and half the width of its interval with two."""
    if value is None or value.interval is None:
        return "-" if value is None else f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {(value.interval.high - value.interval.low) / 2:.2g}"


def mean_field(title: str, rows: Iterable[Sequence[float | int | None]], *, short: str = "", rank: int = 0) -> Field:
    """Return a column of means over runs, a row of runs for each cell, with intervals where there is space."""
    means = [over_runs(runs) for runs in rows]
    cells, narrow = [plus_minus(mean) for mean in means], [mean_of(mean) for mean in means]
    return Field(title=title, short=short, cells=cells, narrow=narrow, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of a measure between a variant and its baseline, paired by seed.

    adjusted: the p-value of the paired t-test, adjusted for all differences of the same call; None without spread
    detectable: `smallest_detectable` of the differences; None without spread
    verdict: by the adjusted p-value at 5 %; the interval is not adjusted, so it can exclude zero where the verdict does
        not. "not distinguishable" says nothing about differences below `detectable`
    """

    measure: str
    variant: str
    baseline: str
    by_seed: tuple[float, ...]
    estimate: Estimate
    adjusted: float | None
    detectable: float | None
    verdict: Verdict

    @property
    def found(self) -> bool:
        """Return whether the verdict is that the variant is higher or lower."""
        return self.verdict in ("higher", "lower")

    @property
    def words(self) -> str:
        """Return the verdict; "not distinguishable" with the smallest detectable difference."""
        missed = self.detectable is not None and not self.found
        return f"{self.verdict} (detectable {decimals(self.detectable)})" if missed else self.verdict


def differences(
    measured: Mapping[str, Mapping[str, Mapping[int, float]]], pairs: Sequence[tuple[str, str]]
) -> list[Difference]:
    """Compare every pair (variant, baseline) in every measure, over the seeds that both have.

    A pair with fewer than two common seeds is left out. A difference that is the same for all seeds has no p-value: its
    spread is not known, as it happens to accuracies on few images. It counts as a comparison with p-value 1.

    measured: values by measure, variant and seed
    pairs: p-values are adjusted for all of them (Benjamini and Hochberg 1995)
    """
    paired = []
    for measure, by_variant in measured.items():
        for variant, baseline in pairs:
            ours, theirs = by_variant.get(variant, {}), by_variant.get(baseline, {})
            by_seed = tuple(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))
            if len(by_seed) > 1:
                paired.append((measure, variant, baseline, by_seed))
    adjusted = false_discovery_rate(np.array([_p_value(by_seed) for *_, by_seed in paired]))
    return [
        _difference(measure, variant, baseline, by_seed, float(p))
        for (measure, variant, baseline, by_seed), p in zip(paired, adjusted, strict=True)
    ]


def smallest_detectable(by_seed: Sequence[float]) -> float:
    """Return the difference that a paired t-test finds in 80 % of repetitions, with as many seeds and this spread.

    The test is two-sided at 5 %, before adjustment for other comparisons. At least two seeds.
    """
    return float(_detectable_errors(len(by_seed)) * moments_of(by_seed).standard_error()[0])


@functools.cache
def _detectable_errors(seeds: int) -> float:
    """Return the smallest detectable difference in standard errors.

    Power is the mean over the distribution of the estimated spread; scipy's noncentral t is NaN for few seeds.
    """
    freedom = seeds - 1
    draws = stats.chi2.ppf((np.arange(10_000) + 0.5) / 10_000, freedom)
    needed = student_quantile(1 - LEVEL / 2, freedom) * np.sqrt(draws / freedom)

    def missing(difference: float) -> float:
        found = special.ndtr(difference - needed) + special.ndtr(-difference - needed)
        return float(found.mean()) - POWER

    return float(optimize.brentq(missing, 0.0, 100.0))


def _difference(measure: str, variant: str, baseline: str, by_seed: tuple[float, ...], adjusted: float) -> Difference:
    mean = estimate(by_seed)
    assert mean is not None, "pairs with fewer than two seeds are left out"
    known = not _same(by_seed)
    verdict: Verdict = "not distinguishable" if known else "spread unknown"
    if known and adjusted <= LEVEL:
        verdict = "higher" if mean.mean > 0 else "lower"
    return Difference(
        measure=measure, variant=variant, baseline=baseline, by_seed=by_seed, estimate=mean, verdict=verdict,
        adjusted=adjusted if known else None, detectable=smallest_detectable(by_seed) if known else None,
    )  # fmt: skip


def _p_value(by_seed: Sequence[float]) -> float:
    return 1.0 if _same(by_seed) else float(moments_of(by_seed).p_value()[0])


def _same(by_seed: Sequence[float]) -> bool:
    return max(by_seed) - min(by_seed) <= 1e-12 * max(map(abs, by_seed))


DID_NOT_TRAIN = "did not train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a measure is without looking at the input.

    measure: its name among the measures of a run
    value: its value for the majority class, for chance, or for words by their frequency
    name: which of them
    lower_is_better: True for a measure such as perplexity
    """

    measure: str
    value: float
    name: str
    lower_is_better: bool = False

    def trained(self, measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> tuple[str, ...]:
        """Return the variants that are above the floor with their whole 95 % interval over seeds.

        One seed has no interval: its value is compared. A variant of which one of few seeds failed has a wide interval,
        so that it is not among them.

        measured: by variant, seed and measure
        """
        return tuple(variant for variant, seeds in measured.items() if self._exceeded(seeds))

    def _exceeded(self, seeds: Mapping[int, Mapping[str, float]]) -> bool:
        sign = -1 if self.lower_is_better else 1
        found = estimate([sign * values[self.measure] for values in seeds.values()])
        if found is None:
            return False
        return (found.mean if found.interval is None else found.interval.low) > sign * self.value


def plot_mean(
    axes: "Axes", x: Sequence[Number], runs: Sequence[Sequence[Number | None]], *, label: str, colour: int
) -> None:
    """Plot the mean over runs at every x, in the band of its 95 % interval. An x without values is a gap.

    The interval of two runs is twelve times as wide as they are apart; their band is their range.
    """
    values = [[float(value) for value in at_x if value is not None] for at_x in runs]
    known = [(at, of_x, mean) for at, of_x in zip(x, values, strict=True) if (mean := estimate(of_x)) is not None]
    bounds = [
        (min(of_x), max(of_x)) if m.interval is None or m.count < 3 else (m.interval.low, m.interval.high)
        for _, of_x, m in known
    ]
    low, high = zip(*bounds, strict=True) if bounds else ((), ())
    plot_band(axes, [at for at, _, _ in known], [m.mean for _, _, m in known], low, high, label=label, colour=colour)


def plot_range(axes: "Axes", x: Sequence[Number], runs: Sequence[Sequence[Number]], *, label: str, colour: int) -> None:
    """Plot the mean over runs at every x, in the band from the smallest to the largest, for logarithmic scales."""
    means = [sum(values) / len(values) for values in runs]
    plot_band(axes, x, means, [min(v) for v in runs], [max(v) for v in runs], label=label, colour=colour)
