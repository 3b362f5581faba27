"""A comparison as tables: in Markdown, in columns for a terminal, and as plain values."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from clearhead.experiments.estimates import Estimate
from clearhead.experiments.experiment import installed_versions
from clearhead.experiments.markdown import markdown_table
from clearhead.experiments.robustness.comparison import CLEAN, NOISE, OTHER, PRIMARY, Comparison
from clearhead.experiments.robustness.runs import Plan
from clearhead.report.columns import Column, text_column
from clearhead.robustness.corruptions import CORRUPTIONS

__all__ = ["as_columns", "as_facts", "as_markdown", "headline", "remarks"]

PACKAGES = ("torch", "numpy", "scipy")
SHORT = {CLEAN: "clean", NOISE: "noise", OTHER: "other"}


def headline(found: Comparison) -> str:
    """How many runs, the range of clean accuracy, and how many differences can be told from none."""
    clean = [estimate.mean for estimate in found.estimates[CLEAN].values() if estimate is not None]
    accuracy = f"clean {min(clean):.3f} to {max(clean):.3f}" if clean else "none trained"
    return f"{len(found.runs)} runs, {accuracy}; {len(found.told)} of {len(found.differences)} differences told"


def as_columns(found: Comparison) -> tuple[Sequence[Column], ...]:
    """For a terminal, the widest first."""
    names = [variant.name for variant in found.variants]
    first = text_column("variant", names, right=False)
    wide = [text_column(SHORT[m], [_plus_minus(found.estimates[m][name]) for name in names]) for m in PRIMARY]
    bare = [text_column(SHORT[m], [_mean(found.estimates[m][name]) for name in names]) for m in PRIMARY]
    cost = [
        text_column("weights", [f"{found.parameters(name):,}" for name in names]),
        text_column("step", [f"{found.ratio(name).median:.2f}" for name in names]),
    ]
    return ((first, *wide, *cost), (first, *bare, *cost), (first, *bare), (first, *bare[:2]), (first, bare[0]))


def remarks(found: Comparison) -> tuple[str, ...]:
    """What the columns mean, and every difference that can be told, by what it is beside."""
    legend = (
        "Accuracy on clean images, under noise and under other corruptions, ± half of Student's 95 % interval over "
        f"seeds; weights: how many; step: time of a training step, {found.variants[0].name} = 1."
    )
    lost = (f"{run.variant}, seed {run.seed}: {run.reason}" for run in found.lost)
    return (legend, *(_beside(found, baseline) for baseline in found.baselines), *lost)


def _beside(found: Comparison, baseline: str) -> str:
    compared = sum(difference.beside == baseline for difference in found.differences)
    told = [f"{d.variant} {d.verdict} ({d.measure}, {_signed(d.estimate)})" for d in found.told if d.beside == baseline]
    rest = f"{compared - len(told)} of {compared} differences not distinguishable from none"
    return f"Beside {baseline}: " + "; ".join([*told, rest]) + "."


def as_markdown(found: Comparison, *, title: str, command: str, plan: Plan) -> str:
    """Accuracy and cost, differences, every corruption by itself, and what each variant is."""
    names = [variant.name for variant in found.variants]
    kinds = [corruption.name for corruption in CORRUPTIONS]
    parts = [
        f"# {title}",
        _caption(found, command=command, plan=plan),
        "## Accuracy and cost",
        markdown_table(
            ["variant", *PRIMARY, "parameters", "time of a step"], [_main_row(found, name) for name in names]
        ),
        "## Differences between variants, seed by seed",
        markdown_table(
            ["variant", "beside", "accuracy", "difference [95 % CI]", "adjusted p", "verdict"],
            [
                [d.variant, d.beside, d.measure, _signed(d.estimate), f"{d.adjusted:.2g}", d.verdict]
                for d in found.differences
            ],
        ),
        "## Each corruption, mean over severities 1 to 5",
        markdown_table(
            ["variant", *kinds], [[name, *(_mean(found.estimates[kind][name]) for kind in kinds)] for name in names]
        ),
        *_bounds(found),
        "## Variants",
        "\n".join(f"- {variant.name}: {variant.meaning}" for variant in found.variants),
    ]
    if found.lost:
        parts += ["## Not trained", "\n".join(f"- {run.variant}, seed {run.seed}: {run.reason}" for run in found.lost)]
    return "\n\n".join(parts) + "\n"


def _bounds(found: Comparison) -> list[str]:
    """How many entries of keys are clamped, for the variants that clamp."""
    by_name = {variant.name: found.beyond(variant.name) for variant in found.variants}
    rows = [
        [name, *("-" if share is None else f"{100 * share:.3g}" for share in shares)]
        for name, shares in by_name.items()
        if any(share is not None for share in shares)
    ]
    if not rows:
        return []
    head = ["variant", *(f"layer {place}" for place in range(1, len(rows[0])))]
    return ["## Entries of keys that the first clamping cuts, per cent", markdown_table(head, rows)]


def _main_row(found: Comparison, name: str) -> list[str]:
    ratio = found.ratio(name)
    accuracies = [_with_interval(found.estimates[measure][name]) for measure in PRIMARY]
    time = f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    return [name, *accuracies, f"{found.parameters(name):,}", time]


def _caption(found: Comparison, *, command: str, plan: Plan) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(*PACKAGES).items())
    seeds = sorted({run.seed for run in found.runs})
    images = max((run.images for run in found.runs), default=0)
    return (
        f"Made by `{command}` on {datetime.now(UTC).date().isoformat()}; {versions}. Seeds {seeds[0]} to {seeds[-1]}, "
        f"{plan.recipe.epochs} epochs over {plan.trained_on:,} images. Clean accuracy is that on {images:,} test "
        f"images, the others are those on the first {plan.corrupted:,}, the same for all. Means over seeds with "
        "Student's 95 % intervals, which hold the chance of a run and not that of the test images. p-values are of "
        "paired tests over seeds, adjusted among all differences; a verdict needs 5 %. The time of a step is the "
        f"median of its ratio to {found.variants[0].name} in the same round, with quartiles, on one thread, of models "
        "before training."
    )


def as_facts(found: Comparison, *, command: str, plan: Plan) -> dict[str, Any]:
    """Every number, raw and as it is shown."""
    return {
        "format": "clearhead-robustness/1",
        "command": command,
        "versions": installed_versions(*PACKAGES),
        "plan": dataclasses.asdict(plan),
        "corruptions": {corruption.name: corruption.amounts for corruption in CORRUPTIONS},
        "variants": {variant.name: variant.meaning for variant in found.variants},
        "runs": [dataclasses.asdict(run) for run in found.runs],
        "estimates": {
            measure: {name: None if one is None else dataclasses.asdict(one) for name, one in by_name.items()}
            for measure, by_name in found.estimates.items()
        },
        "differences": [dataclasses.asdict(difference) for difference in found.differences],
        "step_times": {
            "key": found.times.key,
            "seconds": found.times.seconds,
            "ratios": {variant.name: dataclasses.asdict(found.ratio(variant.name)) for variant in found.variants},
        },
    }


def _mean(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.mean:.3f}"


def _plus_minus(found: Estimate | None) -> str:
    if found is None or found.interval is None:
        return _mean(found)
    return f"{found.mean:.3f} ± {(found.interval.high - found.interval.low) / 2:.3f}"


def _with_interval(found: Estimate | None) -> str:
    if found is None or found.interval is None:
        return _mean(found)
    return f"{found.mean:.3f} [{found.interval.low:.3f}, {found.interval.high:.3f}]"


def _signed(found: Estimate) -> str:
    assert found.interval is not None, "a difference has two seeds at least"
    return f"{found.mean:+.3f} [{found.interval.low:+.3f}, {found.interval.high:+.3f}]"
