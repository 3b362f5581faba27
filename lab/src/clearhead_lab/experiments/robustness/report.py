"""The comparison of all variants: means over seeds, paired differences from their baselines, as tables and as text."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearhead.report.tables import Estimate, Field, Table, estimate
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN, Difference, Floor, differences
from clearhead_lab.experiments.experiment import Report, installed_versions
from clearhead_lab.experiments.robustness.runs import Run
from clearhead_lab.experiments.robustness.step_time import Ratio, StepTimes
from clearhead_lab.experiments.robustness.variants import Design, Variant
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


SHORT = {CLEAN: "clean", NOISE: "noise", OTHER: "other"}


def as_report(comparison: Comparison, design: Design) -> Report:
    """Report accuracy and cost, differences, every corruption, and the meaning of each variant."""
    names = [variant.name for variant in comparison.variants]
    kinds = [corruption.name for corruption in CORRUPTIONS]
    clamped = _clamped_table(comparison)
    failed = [f"{run.variant}, seed {run.seed}: {run.reason}" for run in comparison.failed]
    failed += [f"{name}: {DID_NOT_TRAIN}, its clean accuracy does not exceed chance" for name in comparison.untrained]
    variants = "\n".join(f"- {variant.name}: {variant.meaning}" for variant in comparison.variants)
    return Report(
        headline=_headline(comparison),
        setting=_setting(comparison, design),
        sections=[
            ("Accuracy and cost", _main_table(comparison)),
            ("Differences between variants, paired by seed", _difference_table(comparison)),
            (
                "Each corruption, mean over severities 1 to 5",
                [
                    Field(title="variant", cells=names, text=True),
                    *(
                        Field(title=kind, cells=[_mean(comparison.estimates[kind][name]) for name in names])
                        for kind in kinds
                    ),
                ],
            ),
            *([("Key entries changed by the first clamping, in per cent", clamped)] if clamped else []),
            ("Variants", variants),
            *([("Not trained", "\n".join(f"- {line}" for line in failed))] if failed else []),
        ],
        terminal=_terminal_table(comparison),
        remarks=(
            "Accuracy on clean images, under noise and under other corruptions, ± half of the 95 % Student interval "
            f"over seeds; weights: number of parameters; step: time of a training step, {names[0]} = 1.",
            *(_compared_with(comparison, baseline) for baseline in comparison.baselines),
            *failed,
        ),
        facts=_facts(comparison, design),
    )


def _headline(comparison: Comparison) -> str:
    clean = [estimate.mean for estimate in comparison.estimates[CLEAN].values() if estimate is not None]
    accuracy = f"clean {min(clean):.3f} to {max(clean):.3f}" if clean else "none trained"
    counts = f"{len(comparison.significant)} of {len(comparison.differences)} differences significant"
    return f"{len(comparison.runs)} runs, {accuracy}; {counts}"


def _compared_with(comparison: Comparison, baseline: str) -> str:
    compared = sum(difference.baseline == baseline for difference in comparison.differences)
    significant = [
        f"{d.variant} {d.verdict} ({d.measure}, {_signed(d.estimate)})"
        for d in comparison.significant
        if d.baseline == baseline
    ]
    rest = f"{compared - len(significant)} of {compared} differences not significant"
    return f"Compared with {baseline}: " + "; ".join([*significant, rest]) + "."


def _terminal_table(comparison: Comparison) -> Table:
    names = [variant.name for variant in comparison.variants]
    return [
        Field(title="variant", cells=names, text=True),
        *(
            Field(
                title=SHORT[measure],
                cells=[_plus_minus(comparison.estimates[measure][name]) for name in names],
                narrow=[_mean(comparison.estimates[measure][name]) for name in names],
                rank=rank,
            )
            for rank, measure in enumerate(PRIMARY)
        ),
        Field(title="weights", cells=[f"{comparison.parameters(name):,}" for name in names], rank=3),
        Field(title="step", cells=[f"{comparison.ratio(name).median:.2f}" for name in names], rank=3),
    ]


def _main_table(comparison: Comparison) -> Table:
    names = [variant.name for variant in comparison.variants]
    ratios = [comparison.ratio(name) for name in names]
    return [
        Field(title="variant", cells=names, text=True),
        *(
            Field(title=measure, cells=[_with_interval(comparison.estimates[measure][name]) for name in names])
            for measure in PRIMARY
        ),
        Field(title="parameters", cells=[f"{comparison.parameters(name):,}" for name in names]),
        Field(title="time of a step", cells=[f"{r.median:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in ratios]),
    ]


def _difference_table(comparison: Comparison) -> Table:
    each = comparison.differences
    return [
        Field(title="variant", cells=[d.variant for d in each], text=True),
        Field(title="baseline", cells=[d.baseline for d in each], text=True),
        Field(title="accuracy", cells=[d.measure for d in each], text=True),
        Field(title="difference [95 % CI]", cells=[_signed(d.estimate) for d in each]),
        Field(title="detectable", cells=["-" if d.detectable is None else f"{d.detectable:.3f}" for d in each]),
        Field(title="adjusted p", cells=["-" if d.adjusted is None else f"{d.adjusted:.2g}" for d in each]),
        Field(title="verdict", cells=[d.verdict for d in each], text=True),
    ]


def _clamped_table(comparison: Comparison) -> Table:
    """Tabulate the variants with a bound; empty without one."""
    by_name = {variant.name: comparison.clamped(variant.name) for variant in comparison.variants}
    bounded = {name: shares for name, shares in by_name.items() if any(share is not None for share in shares)}
    if not bounded:
        return []
    return [
        Field(title="variant", cells=list(bounded), text=True),
        *(
            Field(title=f"layer {layer}", cells=["-" if share is None else f"{100 * share:.3g}" for share in shares])
            for layer, shares in enumerate(zip(*bounded.values(), strict=True), 1)
        ),
    ]


def _setting(comparison: Comparison, design: Design) -> str:
    seeds = sorted({run.seed for run in comparison.runs})
    images = max((run.images for run in comparison.runs), default=0)
    return (
        f"Seeds {seeds[0]} to {seeds[-1]}, {design.file.recipe.epochs} epochs over {design.file.data.take:,} images. "
        f"Clean accuracy is on {images:,} test images, the others on the first {design.corrupted:,}, the same for all. "
        "Means over seeds with 95 % Student intervals, which reflect the variation of runs and not of test images. "
        "p-values are from paired t-tests over seeds, adjusted for all differences; a verdict requires 5 %. "
        "Detectable: the smallest difference that this test finds in 80 % of repetitions, before adjustment. The time "
        f"of a step is the median of its ratio to {comparison.variants[0].name} in the same round, with quartiles, on "
        "one thread, for untrained models."
    )


def _facts(comparison: Comparison, design: Design) -> dict[str, Any]:
    """Return every number as plain values."""
    return {
        "format": "clearhead-robustness/2",
        "versions": installed_versions(),
        "plan": {
            "model": dict(design.file.model),
            "recipe": dataclasses.asdict(design.file.recipe),
            "train_images": design.file.data.take,
            "corrupted": design.corrupted,
            "rounds": design.rounds,
        },
        "corruptions": {corruption.name: corruption.amounts for corruption in CORRUPTIONS},
        "variants": {variant.name: variant.meaning for variant in comparison.variants},
        "runs": [dataclasses.asdict(run) for run in comparison.runs],
        "estimates": {
            measure: {name: None if mean is None else dataclasses.asdict(mean) for name, mean in by_name.items()}
            for measure, by_name in comparison.estimates.items()
        },
        "differences": [dataclasses.asdict(difference) for difference in comparison.differences],
        "step_times": {
            "key": comparison.times.key,
            "seconds": comparison.times.seconds,
            "ratios": {v.name: dataclasses.asdict(comparison.ratio(v.name)) for v in comparison.variants},
        },
    }


def _mean(value: Estimate | None) -> str:
    return "-" if value is None else f"{value.mean:.3f}"


def _plus_minus(value: Estimate | None) -> str:
    if value is None or value.interval is None:
        return _mean(value)
    return f"{value.mean:.3f} ± {(value.interval.high - value.interval.low) / 2:.3f}"


def _with_interval(value: Estimate | None) -> str:
    if value is None or value.interval is None:
        return _mean(value)
    return f"{value.mean:.3f} [{value.interval.low:.3f}, {value.interval.high:.3f}]"


def _signed(value: Estimate) -> str:
    assert value.interval is not None, "a difference has at least two seeds"
    return f"{value.mean:+.3f} [{value.interval.low:+.3f}, {value.interval.high:+.3f}]"
