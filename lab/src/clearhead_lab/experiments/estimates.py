"""Estimates over seeds: means with intervals, and paired differences between variants that share their seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from clearhead.numerics.moments import false_discovery_rate
from clearhead.report.tables import Estimate, Field, estimate, mean_of, moments_of, over_runs, plus_minus

__all__ = ["Difference", "Verdict", "differences", "mean_field"]

Verdict = Literal["higher", "lower", "not distinguishable"]
LEVEL = 0.05


def mean_field(title: str, rows: Iterable[Sequence[float | int | None]], *, short: str = "", rank: int = 0) -> Field:
    """Return a column of means over runs, a row of runs for each cell, with intervals where there is space."""
    means = [over_runs(runs) for runs in rows]
    cells, narrow = [plus_minus(mean) for mean in means], [mean_of(mean) for mean in means]
    return Field(title=title, short=short, cells=cells, narrow=narrow, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of a measure between a variant and its baseline, paired by seed.

    adjusted: the p-value of the paired t-test, adjusted for all differences of the same call
    verdict: by the adjusted p-value at 5 %; the interval is not adjusted, so it can exclude zero where the verdict does
        not
    """

    measure: str
    variant: str
    baseline: str
    by_seed: tuple[float, ...]
    estimate: Estimate
    adjusted: float
    verdict: Verdict


def differences(
    measured: Mapping[str, Mapping[str, Mapping[int, float]]], pairs: Sequence[tuple[str, str]]
) -> list[Difference]:
    """Compare every pair (variant, baseline) in every measure, over the seeds that both have.

    A pair with fewer than two common seeds is left out. A difference that is the same for all seeds has p-value 1: its
    spread is not known, as it happens to accuracies on few images.

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


def _difference(measure: str, variant: str, baseline: str, by_seed: tuple[float, ...], adjusted: float) -> Difference:
    mean = estimate(by_seed)
    assert mean is not None, "pairs with fewer than two seeds are left out"
    verdict: Verdict = "not distinguishable"
    if adjusted <= LEVEL:
        verdict = "higher" if mean.mean > 0 else "lower"
    return Difference(
        measure=measure, variant=variant, baseline=baseline, by_seed=by_seed, estimate=mean, adjusted=adjusted,
        verdict=verdict,
    )  # fmt: skip


def _p_value(by_seed: Sequence[float]) -> float:
    same = max(by_seed) - min(by_seed) <= 1e-12 * max(map(abs, by_seed))
    return 1.0 if same else float(moments_of(by_seed).p_value()[0])
