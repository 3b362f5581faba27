"""Figure 1: the projection loss over training, as published and corrected, for the model's values and random ones."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._capture.recording import capture
from clearhead.heads import Heads
from clearhead.report.plots import finish_panel, make_panels, plot_range
from clearhead.report.tables import Field, Table
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.controls import RandomMaps
from clearhead.theories.kernel_pca.loss import (
    Queries,
    explained_fraction,
    log_output_square,
    log_true_loss,
    queries_in_space,
)
from clearhead.theories.kernel_pca.space import KeySpace, key_space
from clearhead.theories.kernel_pca.spans import span_of
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.study import Study, StudyRun, study_experiment, study_images, train_study, variants_named
from clearhead_lab.training.evaluation import evaluating


def capture_layers(model: nn.Module, images: Float[Tensor, "b c y x"]) -> list[Heads]:
    """Return the heads of every layer. The model runs in evaluation mode and gets its mode back."""
    with evaluating(model) as device, capture(model) as captured:
        model(images.to(device))
    return captured.heads


def random_map_values(heads: Heads, *, draws: int, seed: int) -> Float[Tensor, "t b h m e"]:
    """Return the layer's values under random value maps that have the singular values of its own."""
    assert heads.values_from is not None  # Clearhead's own modules have linear values
    maps = RandomMaps.draw(heads.values_from, draws=draws, seed=seed, layer=heads.layer)
    inputs = [maps.at(x, slice(None)) for x in heads.values_from.x]
    count = heads.v.shape[1]
    return torch.stack([torch.stack([x.of_head(head).mT for head in range(count)], dim=1) for x in inputs], dim=1)


STUDY = Study(small="vit-cifar-10-small", paper="deit-tiny-imagenet", variants=variants_named("softmax", "symmetric"))
IMAGES, DRAWS = 32, 4
"""Test images on which the loss is measured, and random value maps."""
QUERY = "query_square"
MEASURES = {
    "published_loss": "published loss",
    "output_square": "|h|^2",
    "true_loss": "corrected loss",
    "projected_square": "projected",
    "explained": "explained",
}
RANDOM, MEDIAN = "random_", "median_"
"""Begin the names of measures for random values, and of medians instead of means."""
CLAIMED = (
    "The projection loss of ViT-tiny, the mean over batch, heads and layers, falls over training (Figure 1). That is "
    "read as evidence that attention learns to project queries on the principal axes of the keys."
)
DIFFER = (
    "The published loss is |phi(q)|^2 - |h|^2, h the output. It is a residual only if the axes of the values are "
    "orthonormal, which nothing in the training enforces: it is negative where outputs are larger than features, and "
    "it changes with the scale of the values. The corrected loss is the part of phi(q) outside the span of the axes, "
    "for any values. It depends on the values through the explained fraction only; |phi(q)|^2 depends on queries and "
    "keys alone, so that a loss can fall whatever the values are. The same numbers for random value maps show what "
    "the values contribute. The released code computes another quantity: it leaves the scale out of |phi(q)|^2, uses "
    "one key for g, and takes the logarithm. A query far from all keys has a very large |phi(q)|^2, and a few of them "
    "determine the means of softmax attention, which then differ between seeds by powers of ten and say no more than "
    "that; with symmetric attention |phi(q)|^2 is at most 1. The model, the images "
    "and the training here are far smaller than ViT-tiny on ImageNet-1K."
)


def projection_losses(
    model: nn.Module, images: Float[Tensor, "b c y x"], *, draws: int = DRAWS, seed: int = 0
) -> dict[str, float]:
    """Return the losses and their terms for the model's values and random ones, over images, heads and layers.

    Means are as published; the medians of the same numbers do not depend on a few queries far from all keys.

    query_square is |phi(q)|^2 and output_square |h|^2, the terms of the published loss. projected_square is the part of
    |phi(q)|^2 within the span of the values' axes: the corrected loss is query_square - projected_square. `explained`
    is its share of query_square, by head.
    """
    by_layer = [_of_layer(heads, draws=draws, seed=seed) for heads in capture_layers(model, images)]
    means = {name: torch.stack([layer[name].mean() for layer in by_layer]).mean() for name in by_layer[0]}
    numbers = {name: torch.cat([layer[name].flatten() for layer in by_layer]) for name in by_layer[0]}
    medians = {MEDIAN + name: x.quantile(0.5) for name, x in numbers.items()}
    return {name: float(x) for name, x in {**means, **medians}.items()}


def _of_layer(heads: Heads, *, draws: int, seed: int) -> dict[str, Tensor]:
    """Return the numbers of the images and heads of one layer, for random values also of every draw."""
    space = key_space(heads.k, scale=heads.scale)
    queries = queries_in_space(space, heads.q.unsqueeze(-3))
    own = _of_values(space, queries, heads.v.double())
    random = _of_values(space, queries, random_map_values(heads, draws=draws, seed=seed))
    return {QUERY: queries.log_mean_square.exp(), **own, **{RANDOM + name: x for name, x in random.items()}}


def _of_values(space: KeySpace, queries: Queries, v: Float[Tensor, "*t m e"]) -> dict[str, Tensor]:
    total, output = queries.log_mean_square.exp(), log_output_square(queries, v).exp()
    explained = explained_fraction(queries, span_of(space, v))
    true = log_true_loss(queries, explained).exp()
    return {
        "published_loss": total - output,
        "output_square": output,
        "true_loss": true,
        "projected_square": total - true,
        "explained": explained,
    }


def _measure(request: Request, folder: Path) -> list[tuple[StudyRun, list[Mapping[str, float]]]]:
    """Return every run with its losses before training and after every epoch."""
    count = request.inputs or IMAGES
    measure = partial(projection_losses, images=study_images(STUDY, request, count), seed=request.seed)
    # The log holds the losses, so runs with another number of images are other runs.
    runs = train_study(STUDY, request, folder=folder / f"losses-{count}-images", after_epoch=measure)
    return [(run, [measure(run.initial_model()), *run.log]) for run in runs]


def _report(results: Sequence[tuple[StudyRun, Sequence[Mapping[str, float]]]], request: Request) -> Report:
    curves: dict[str, dict[int, Sequence[Mapping[str, float]]]] = {}
    for run, curve in results:
        curves.setdefault(run.variant, {})[run.seed] = curve
    recipe = STUDY.recipe(request, next(iter(STUDY.variants)), request.seed)
    return Report(
        headline="; ".join(_headline(variant, list(by_seed.values())) for variant, by_seed in curves.items()),
        setting=f"Recipe {recipe.name}, {recipe.recipe.epochs} epochs, {len(results)} runs. Losses on the first "
        f"{request.inputs or IMAGES} test images, over images, heads and layers; cells and bands of the figure are "
        f"ranges over seeds. Random values: {DRAWS} random value maps with the singular values of the layer's own.",
        sections=[
            ("Claimed", CLAIMED),
            ("Measured, means as published", _table(curves, "")),
            ("Measured, medians", _table(curves, MEDIAN)),
            ("Measured for random values, means as published", _table(curves, RANDOM)),
            ("Measured for random values, medians", _table(curves, MEDIAN + RANDOM)),
            ("Why they differ", DIFFER),
        ],
        figures={"projection-loss.svg": lambda: _draw(curves)},
        facts={
            "losses": {
                f"{run.variant}, seed {run.seed}": [{name: point[name] for name in _names()} for point in curve]
                for run, curve in results
            }
        },
    )


def _names() -> list[str]:
    means = [QUERY, *MEASURES, *(RANDOM + name for name in MEASURES)]
    return [*means, *(MEDIAN + name for name in means)]


def _headline(variant: str, curves: Sequence[Sequence[Mapping[str, float]]]) -> str:
    def over_seeds(name: str, epoch: int) -> float:
        return statistics.median(curve[epoch][MEDIAN + name] for curve in curves)

    loss, random = (
        (over_seeds(name, 0), over_seeds(name, -1)) for name in ("published_loss", f"{RANDOM}published_loss")
    )
    explained, of_random = (100 * over_seeds(name, -1) for name in ("explained", f"{RANDOM}explained"))
    return (
        f"{variant}: median published loss {loss[0]:.2g}, after training {loss[1]:.2g} (random values {random[0]:.2g}, "
        f"{random[1]:.2g}), explained {explained:.2g}% (random {of_random:.2g}%)"
    )


def _table(curves: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]], start: str) -> Table:
    rows = [(variant, name, epoch) for variant in curves for name, epoch in (("before", 0), ("after", -1))]
    query = start.removesuffix(RANDOM) + QUERY
    titles = {query: "|phi(q)|^2", **{start + name: title for name, title in MEASURES.items()}}
    return [
        Field(title="variant", cells=[variant for variant, _, _ in rows], text=True),
        Field(title="training", cells=[name for _, name, _ in rows], text=True),
        *(
            Field(
                title=title,
                cells=[
                    _range([curve[epoch][name] for curve in curves[variant].values()]) for variant, _, epoch in rows
                ],
                rank=0 if name.endswith("loss") else 1,
            )
            for name, title in titles.items()
        ),
    ]


def _range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value: a mean of seeds that differ by powers of ten is the largest alone."""
    return " to ".join(f"{value:.2g}" for value in sorted({min(values), max(values)}))


def _draw(curves: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]]) -> Any:
    panels = (
        ("published_loss", "Published loss, |phi(q)|^2 - |h|^2", "published loss", False),
        ("output_square", "Second term of the published loss, |h|^2", "|h|^2", True),
        (QUERY, "First term of both losses, |phi(q)|^2", "|phi(q)|^2", True),
        ("true_loss", "Corrected loss", "corrected loss", True),
        ("projected_square", "Second term of the corrected loss", "projected", True),
        ("explained", "Share of |phi(q)|^2 that the values explain", "explained", False),
    )
    figure, axes = make_panels(len(panels), title="The projection loss over training")
    for panel, (measure, title, label, log) in zip(axes, panels, strict=True):
        lines = [
            (variant, start + measure, f"{variant}{', random values' if start else ''}")
            for variant in curves
            for start in (("",) if measure == QUERY else ("", RANDOM))
        ]
        for variant, name, line in lines:
            points = list(zip(*curves[variant].values(), strict=True))
            colour = 2 * list(curves).index(variant) + ("random" in line)
            plot_range(
                panel, range(len(points)), [[point[name] for point in seeds] for seeds in points],
                label=line, colour=colour,
            )  # fmt: skip
        finish_panel(panel, title=title, x="epoch", y=label, y_log=log)
    axes[0].set_yscale("symlog", linthresh=1.0)  # the published loss has both signs
    return figure


PROJECTION_LOSS = study_experiment(
    STUDY,
    "projection-loss",
    _measure,
    _report,
    title="The projection loss over training",
    reproduces="the projection loss over training, published and corrected, for a model's and random values",
    source="Figure 1",
    cost="26 min",
    full_cost="50 GPU hours",
)
