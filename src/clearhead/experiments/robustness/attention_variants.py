"""What other attentions do to the answers of a small vision transformer, on clean images and on worse ones."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.images import ImageSet, digits
from clearhead.experiments.models.vision import fashion_mnist
from clearhead.experiments.robustness.comparison import compare
from clearhead.experiments.robustness.report import (
    as_columns,
    as_facts,
    as_markdown,
    headline,
    remarks,
)
from clearhead.experiments.robustness.runs import Plan, plain_config, run_all
from clearhead.experiments.robustness.step_time import (
    TIMES,
    StepTimes,
    measure_step_times,
    read_step_times,
    write_step_times,
)
from clearhead.experiments.robustness.variants import VARIANTS, Variant, configs_of
from clearhead.models.vit import VisionTransformerConfig
from clearhead.report.columns import text_column
from clearhead.training.loop import Recipe

__all__ = ["DIGITS_ROBUSTNESS", "ROBUSTNESS", "STEP_TIME", "compare_variants"]

NAME, DIGITS_NAME = "rpc/robustness", "rpc/digits"
TABLE = "table.md"

FASHION_PLAN = Plan(
    patch_size=4,
    width=64,
    layers=4,
    heads=4,
    mlp_width=128,
    trained_on=12_000,
    corrupted=1_000,
    recipe=Recipe(epochs=5, batch_size=64, learning_rate=2e-3, warmup=1.0),
    rounds=25,
)
DIGITS_PLAN = Plan(
    patch_size=2,
    width=32,
    layers=2,
    heads=4,
    mlp_width=64,
    trained_on=1_437,
    corrupted=360,
    recipe=Recipe(epochs=20, batch_size=64, learning_rate=2e-3, warmup=2.0),
    rounds=9,
)


def compare_variants(
    images: ImageSet,
    plan: Plan,
    request: Request,
    folder: Path,
    *,
    name: str,
    variants: Sequence[Variant] = VARIANTS,
) -> Outcome:
    """Train the variants, measure them, time them, and write the table. What is done already is kept."""
    epochs = request.epochs or plan.recipe.epochs
    plan = dataclasses.replace(
        plan,
        recipe=dataclasses.replace(plan.recipe, epochs=epochs, warmup=min(plan.recipe.warmup, epochs / 4)),
        trained_on=min(plan.trained_on, len(images.train_images)),
        corrupted=min(plan.corrupted, len(images.test_images)),
    )
    configs = configs_of(plain_config(images, plan), variants)
    runs = run_all(images, plan, configs, request, folder)
    found = compare(variants, runs, _times(configs, plan, request, folder))
    options = {"--epochs": request.epochs, "--seeds": request.seeds, "--seed": request.seed or None}
    command = " ".join(
        [f"clearhead reproduce {name}", *(f"{option} {value}" for option, value in options.items() if value)]
    )
    title = f"Attention variants on {images.name}: accuracy, corruption, cost"
    write_text(folder / TABLE, as_markdown(found, title=title, command=command, plan=plan))
    return Outcome(
        headline=headline(found),
        tables=as_columns(found),
        remarks=remarks(found),
        files=(folder / TABLE, folder / RESULT),
        facts=as_facts(found, command=command, plan=plan),
    )


def _times(configs: Mapping[str, VisionTransformerConfig], plan: Plan, request: Request, folder: Path) -> StepTimes:
    """As `STEP_TIME` found them last under the same folder, or as kept here, or measured now."""
    for place in (STEP_TIME.folder(request.out), folder):
        kept = read_step_times(place, configs, plan.recipe, rounds=plan.rounds)
        if kept is not None:
            return kept
    return _measure_times(configs, plan, request, folder)


def _measure_times(
    configs: Mapping[str, VisionTransformerConfig], plan: Plan, request: Request, folder: Path
) -> StepTimes:
    times = measure_step_times(
        configs,
        plan.recipe,
        rounds=plan.rounds,
        progress=lambda done, total: request.tell("time of a step, rounds", done, total),
    )
    write_step_times(folder, times)
    return times


def _time_steps(request: Request, folder: Path) -> Outcome:
    configs = configs_of(FASHION_PLAN.config(image_size=28, channels=1, classes=10), VARIANTS)
    times = _measure_times(configs, FASHION_PLAN, request, folder)
    first = VARIANTS[0].name
    ratios = {name: times.ratio(name, to=first) for name in configs}
    columns = (
        text_column("variant", list(ratios), right=False),
        text_column("step", [f"{ratio.median:.2f}" for ratio in ratios.values()]),
        text_column("quartiles", [f"{ratio.low:.2f} to {ratio.high:.2f}" for ratio in ratios.values()]),
    )
    slowest = max(ratios, key=lambda name: ratios[name].median)
    return Outcome(
        headline=f"slowest is {slowest}, {ratios[slowest].median:.2f} times as long as {first}",
        tables=(columns, columns[:2]),
        files=(folder / TIMES,),
    )


ROBUSTNESS = Experiment(
    name=NAME,
    reproduces="RPC, clamped keys, symmetric, scaled and softmax attention on Fashion-MNIST, clean and corrupted",
    cost="1 h",
    run=lambda request, folder: compare_variants(fashion_mnist(request.data), FASHION_PLAN, request, folder, name=NAME),
    options=frozenset({"data", "epochs", "seeds"}),
)
DIGITS_ROBUSTNESS = Experiment(
    name=DIGITS_NAME,
    reproduces="the same on scikit-learn's digits, which needs no download",
    cost="5 min",
    run=lambda request, folder: compare_variants(digits(), DIGITS_PLAN, request, folder, name=DIGITS_NAME),
    options=frozenset({"epochs", "seeds"}),
)
STEP_TIME = Experiment(
    name="rpc/step-time",
    reproduces="the time of their training steps; rpc/robustness under the same folder takes it over",
    cost="2 min",
    run=_time_steps,
)
