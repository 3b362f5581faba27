"""Comparison of all variants: means over seeds, and paired differences from their baselines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.report.tables import Estimate, estimate
from clearhead_lab.experiments.estimates import Difference, differences
from clearhead_lab.experiments.floor import Floor
from clearhead_lab.experiments.robustness.runs import Run
from clearhead_lab.experiments.robustness.step_time import Ratio, StepTimes
from clearhead_lab.experiments.robustness.variants import Variant
from clearhead_lab.robustness.corruptions import CORRUPTIONS, NOISES

CLEAN, NOISE, OTHER = "clean", "noise", "other corruptions"
PRIMARY = (CLEAN, NOISE, OTHER)
"""The accuracies that are compared; the last two are means over corruptions and severities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Estimates by measure and variant, and the differences between variants, paired by seed.

    untrained: the variants that do not exceed chance; nothing is compared with them
    """

    variants: tuple[Variant, ...]
    runs: tuple[Run, ...]
    times: StepTimes
    estimates: dict[str, dict[str, Estimate | None]]
    differences: tuple[Difference, ...]
    untrained: tuple[str, ...]

    @property
    def baselines(self) -> list[str]:
        """The variants that others are compared with."""
        return list(dict.fromkeys(difference.baseline for difference in self.differences))

    @property
    def significant(self) -> list[Difference]:
        """The differences with an adjusted p-value of at most 5 %."""
        return [difference for difference in self.differences if difference.found]

    @property
    def failed(self) -> list[Run]:
        """The runs whose training diverged."""
        return [run for run in self.runs if run.reason]

    def parameters(self, name: str) -> int:
        """Return the number of parameters of a variant."""
        return next(run.parameters for run in self.runs if run.variant == name)

    def clamped(self, name: str) -> list[float | None]:
        """Return the share of key entries that a bound clamps, per layer, mean over seeds; None without a bound."""
        layers = zip(*(run.clamped for run in self.runs if run.variant == name and not run.reason), strict=True)
        return [None if None in layer else float(np.mean(layer)) for layer in layers]

    def ratio(self, name: str) -> Ratio:
        """Return the time of a training step relative to the first variant."""
        return self.times.ratio(name, to=self.variants[0].name)


def compare(variants: Sequence[Variant], runs: Sequence[Run], times: StepTimes, *, classes: int) -> Comparison:
    """Estimate every measure of every variant, and the differences from their baselines. classes: of the images."""
    measured: dict[str, dict[str, dict[int, float]]] = {}
    by_variant: dict[str, dict[int, dict[str, float]]] = {}
    for run in runs:
        if not run.reason:
            by_variant.setdefault(run.variant, {})[run.seed] = _accuracies(run)
        for measure, value in _accuracies(run).items():
            measured.setdefault(measure, {}).setdefault(run.variant, {})[run.seed] = value
    names = [variant.name for variant in variants]
    trained = Floor(measure=CLEAN, value=1 / classes, name="chance").trained(by_variant)
    measures = (*PRIMARY, *(corruption.name for corruption in CORRUPTIONS))
    pairs = [
        (variant.name, baseline)
        for variant in variants
        for baseline in variant.baselines
        if {variant.name, baseline} <= {*trained}
    ]
    return Comparison(
        variants=tuple(variants),
        runs=tuple(runs),
        times=times,
        estimates={
            measure: {name: estimate(list(measured.get(measure, {}).get(name, {}).values())) for name in names}
            for measure in measures
        },
        differences=tuple(differences({measure: measured.get(measure, {}) for measure in PRIMARY}, pairs)),
        untrained=tuple(name for name in by_variant if name not in trained),
    )


def _accuracies(run: Run) -> dict[str, float]:
    """Return the accuracies of one run: those that are compared, and that of each corruption."""
    if run.reason:
        return {}
    each = {kind: sum(right) / len(right) / run.corrupted for kind, right in run.by_corruption.items()}
    noises = {noise.name for noise in NOISES}
    noise, other = ([value for kind, value in each.items() if (kind in noises) is wanted] for wanted in (True, False))
    return {CLEAN: run.clean / run.images, NOISE: sum(noise) / len(noise), OTHER: sum(other) / len(other), **each}
