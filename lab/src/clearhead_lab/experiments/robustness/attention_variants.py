"""Attention variants in a small vision transformer: accuracy on clean and corrupted images, and cost."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clearhead.report.tables import Field
from clearhead_lab.data.image_sets import ImageSet, digits
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.models.vision import fashion_mnist
from clearhead_lab.experiments.robustness.report import Comparison, as_report, compare
from clearhead_lab.experiments.robustness.runs import measure_runs
from clearhead_lab.experiments.robustness.step_time import (
    StepTimes,
    load_step_times,
    measure_step_times,
    store_step_times,
)
from clearhead_lab.experiments.robustness.variants import VARIANTS, Design, Variant, configs_of
from clearhead_lab.experiments.study import in_memory
from clearhead_lab.models.vit import VisionTransformerConfig
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import DataSettings

FASHION_DESIGN = Design(
    file=in_memory(
        Recipe(epochs=5, batch_size=64, learning_rate=2e-3, warmup=1.0), data=DataSettings(take=12_000),
        kind="vision-transformer", patch_size=4, width=64, layers=4, heads=4, mlp_width=128,
    ),
    corrupted=1_000,
    rounds=25,
)  # fmt: skip
DIGITS_DESIGN = Design(
    file=in_memory(
        Recipe(epochs=20, batch_size=64, learning_rate=2e-3, warmup=2.0), data=DataSettings(take=1_437),
        kind="vision-transformer", patch_size=2, width=32, layers=2, heads=4, mlp_width=64,
    ),
    corrupted=360,
    rounds=9,
)  # fmt: skip

Configs = Mapping[str, VisionTransformerConfig]


def measure(
    images: ImageSet, design: Design, request: Request, folder: Path, variants: Sequence[Variant] = VARIANTS
) -> tuple[Comparison, Design]:
    """Train, measure and time the variants; return the comparison and the design as it was carried out."""
    channels, side = images.train_images.shape[1], images.train_images.shape[-1]
    configs = configs_of(design.config(image_size=side, channels=channels, classes=images.classes), variants)
    study, available = design.study(configs), len(images.train_images)
    file = study.recipe(request, variants[0].name, request.seed)
    data = dataclasses.replace(file.data, take=min(file.data.take or available, available))
    corrupted = min(design.corrupted, len(images.test_images))
    design = dataclasses.replace(design, file=dataclasses.replace(file, data=data), corrupted=corrupted)
    runs = measure_runs(images, study, corrupted, request, folder)
    return compare(variants, runs, find_times(configs, design, request, folder), classes=images.classes), design


def find_times(configs: Configs, design: Design, request: Request, folder: Path) -> StepTimes:
    """Return the times of the last run of `STEP_TIME` below the same folder, or those cached here; else measure."""
    for cached in (STEP_TIME.folder(request.out), folder):
        times = load_step_times(cached, configs, design.file.recipe, rounds=design.rounds, request=request)
        if times is not None:
            return times
    return _measure_times(configs, design, request, folder)


def _measure_times(configs: Configs, design: Design, request: Request, folder: Path) -> StepTimes:
    times = measure_step_times(
        configs,
        design.file.recipe,
        rounds=design.rounds,
        progress=lambda done, total: request.progress("time of a step, rounds", done, total),
    )
    store_step_times(folder, times)
    return times


def _time_steps(request: Request, folder: Path) -> StepTimes:
    configs = configs_of(FASHION_DESIGN.config(image_size=28, channels=1, classes=10), VARIANTS)
    return _measure_times(configs, FASHION_DESIGN, request, folder)


def _report_times(times: StepTimes, request: Request) -> Report:
    names = list(times.seconds)
    ratios = {name: times.ratio(name, to=names[0]) for name in names}
    slowest = max(ratios, key=lambda name: ratios[name].median)
    return Report(
        headline=f"slowest is {slowest}, {ratios[slowest].median:.2f} times the time of {names[0]}",
        setting=f"Median time of a training step relative to {names[0]} in the same round, on one thread.",
        sections=[
            (
                "Time of a training step",
                [
                    Field(title="variant", cells=names, text=True),
                    Field(title="step", cells=[f"{ratio.median:.2f}" for ratio in ratios.values()]),
                    Field(
                        title="quartiles",
                        cells=[f"{ratio.low:.2f} to {ratio.high:.2f}" for ratio in ratios.values()],
                        rank=1,
                    ),
                ],
            )
        ],
        facts={"seconds": dict(times.seconds)},
    )


def _experiment(
    name: str,
    images: Callable[[Request], ImageSet],
    design: Design,
    *,
    title: str,
    reproduces: str,
    cost: str,
    options: set[str],
) -> Experiment:
    return Experiment(
        name=name,
        title=f"Attention variants on {title}: accuracy, corruption, cost",
        reproduces=reproduces,
        cost=cost,
        measure=lambda request, folder: measure(images(request), design, request, folder),
        report=lambda results, request: as_report(*results),
        options=frozenset({"epochs", "seeds", *options}),
    )


ROBUSTNESS = _experiment(
    "rpc/robustness",
    lambda request: fashion_mnist(request.data),
    FASHION_DESIGN,
    title="Fashion-MNIST",
    reproduces="RPC, clamped keys, symmetric, scaled and softmax attention on Fashion-MNIST, clean and corrupted",
    cost="1 h",
    options={"data"},
)
DIGITS_ROBUSTNESS = _experiment(
    "rpc/digits",
    lambda request: digits(),
    DIGITS_DESIGN,
    title="digits",
    reproduces="the same on scikit-learn's digits, which needs no download",
    cost="5 min",
    options=set(),
)
STEP_TIME = Experiment(
    name="rpc/step-time",
    title="Time of a training step",
    reproduces="the time of a training step of each variant; rpc/robustness below the same folder uses it",
    cost="2 min",
    measure=_time_steps,
    report=_report_times,
)
