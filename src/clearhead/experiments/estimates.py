"""What several seeds say together: a mean with its interval, and differences of two that share their seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from clearhead.numerics.moments import Interval, RunningMoments, false_discovery_rate

__all__ = ["Difference", "Estimate", "Verdict", "differences", "estimate"]

Verdict = Literal["higher", "lower", "not distinguishable"]
LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean over `count` seeds, and Student's 95 % interval of it; None where there are fewer than two."""

    mean: float
    interval: Interval | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more of a measure one variant has than another, seed by seed.

    adjusted: the p-value of Student's paired test, adjusted among all differences of the same call
    verdict: by that p-value at 5 %; the interval is that of this difference alone, so it may leave out zero and the
        verdict not
    """

    measure: str
    variant: str
    beside: str
    by_seed: tuple[float, ...]
    estimate: Estimate
    adjusted: float
    verdict: Verdict


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of the values with its interval; None of no values."""
    if not values:
        return None
    moments = _moments(values)
    low, high = (float(end[0]) for end in moments.interval())
    return Estimate(
        mean=float(moments.mean[0]), interval=Interval(low, high) if len(values) > 1 else None, count=len(values)
    )


def differences(
    measured: Mapping[str, Mapping[str, Mapping[int, float]]], pairs: Sequence[tuple[str, str]]
) -> list[Difference]:
    """Every pair (variant, beside) in every measure, over the seeds that both have; left out where those are under two.

    measured: values by measure, variant and seed
    pairs: which to compare; false discoveries among all of them are held to 5 % (Benjamini and Hochberg 1995)
    """
    paired = []
    for measure, by_variant in measured.items():
        for variant, beside in pairs:
            ours, theirs = by_variant.get(variant, {}), by_variant.get(beside, {})
            by_seed = tuple(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))
            if len(by_seed) > 1:
                paired.append((measure, variant, beside, by_seed))
    adjusted = false_discovery_rate(np.array([_moments(by_seed).p_value()[0] for *_, by_seed in paired]))
    return [
        _difference(measure, variant, beside, by_seed, float(p))
        for (measure, variant, beside, by_seed), p in zip(paired, adjusted, strict=True)
    ]


def _difference(measure: str, variant: str, beside: str, by_seed: tuple[float, ...], adjusted: float) -> Difference:
    found = estimate(by_seed)
    assert found is not None, "there are two seeds at least"
    verdict: Verdict = "not distinguishable"
    if adjusted <= LEVEL:
        verdict = "higher" if found.mean > 0 else "lower"
    return Difference(
        measure=measure, variant=variant, beside=beside, by_seed=by_seed, estimate=found, adjusted=adjusted,
        verdict=verdict,
    )  # fmt: skip


def _moments(values: Sequence[float]) -> RunningMoments:
    moments = RunningMoments((1,))
    for value in values:
        moments.add(np.array([value]))
    return moments
