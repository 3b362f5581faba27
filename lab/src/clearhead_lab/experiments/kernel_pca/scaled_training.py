"""Figure 3 (right): Scaled Attention and softmax attention over training. No study trains the variants of Figure 4."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.study import (
    Study,
    StudyRun,
    chance,
    compared,
    how_compared,
    measured_table,
    study_experiment,
    train_study,
    variants_named,
)  # fmt: skip

STUDY = Study(small="vit-cifar-10-small", paper="deit-tiny-imagenet", variants=variants_named("softmax", "scaled"))
CLAIMED = (
    "Asymmetric ViT-tiny on ImageNet-1K: top-1 73.02 for scaled attention with a scalar against 72.18 for softmax; "
    "validation loss 1.18 against 1.23."
)
DIFFER = "The model, the images and the training are far smaller than ViT-tiny on ImageNet-1K."
TITLES = {"accuracy": "accuracy", "test_loss": "test loss", "loss": "training loss"}


def _measure(request: Request, folder: Path) -> list[StudyRun]:
    return train_study(STUDY, request)


def _report(runs: list[StudyRun], request: Request) -> Report:
    measured: dict[str, dict[int, Mapping[str, float]]] = {}
    for run in runs:
        measured.setdefault(run.variant, {})[run.seed] = {name: run.log[-1][name] for name in TITLES}
    recipe = STUDY.recipe(request, "softmax", request.seed)
    floor = chance(runs)
    trained = floor.trained(measured)
    cells = {variant: _headline(seeds) if variant in trained else DID_NOT_TRAIN for variant, seeds in measured.items()}
    return Report(
        headline=", ".join(f"{variant} {cell}" for variant, cell in cells.items()),
        setting=f"Recipe {recipe.name}, {recipe.recipe.epochs} epochs. {how_compared(floor)}",
        sections=[
            ("Claimed", CLAIMED),
            ("Measured", measured_table(runs, measured, TITLES, floor=floor)),
            ("Differences from softmax attention", compared(measured, TITLES, baseline="softmax", floor=floor)),
            ("Why they differ", DIFFER),
        ],
        figures={"training.svg": lambda: _draw(runs)},
        facts={"logs": {f"{run.variant}, seed {run.seed}": [dict(entry) for entry in run.log] for run in runs}},
    )


def _headline(seeds: Mapping[int, Mapping[str, float]]) -> str:
    return f"{100 * sum(values['accuracy'] for values in seeds.values()) / len(seeds):.1f}%"


def _draw(runs: list[StudyRun]) -> Any:
    figure, panels = make_panels(2, title="Scaled and softmax attention over training")
    variants = list(dict.fromkeys(run.variant for run in runs))
    for axes, (name, title) in zip(panels, (("accuracy", "accuracy"), ("test_loss", "test loss")), strict=True):
        for colour, variant in enumerate(variants):
            logs = [run.log for run in runs if run.variant == variant]
            epochs = range(len(logs[0]))
            plot_mean(
                axes, [epoch + 1 for epoch in epochs], [[log[epoch][name] for log in logs] for epoch in epochs],
                label=variant, colour=colour,
            )  # fmt: skip
        finish_panel(axes, title=title, x="epoch", y=title)
    return figure


SCALED_TRAINING = study_experiment(
    STUDY,
    "scaled-attention",
    _measure,
    _report,
    title="Scaled Attention over training",
    reproduces="accuracy and loss over training, scaled against softmax attention, on CIFAR-10",
    source="Figure 3 right",
    cost="24 min",
    full_cost="50 GPU hours",
    options=("data", "epochs", "seeds"),
)
