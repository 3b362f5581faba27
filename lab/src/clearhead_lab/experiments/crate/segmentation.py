"""Does attention segment the object? Maps of the class token against true masks, with controls."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.report.plots import make_panels
from clearhead.report.tables import Field, Table, decimals, over_runs, plus_minus
from clearhead_lab.experiments.crate.attention_maps import (
    attention_maps,
    best_head,
    centre_prior,
    foreground,
    overlap,
    upsampled,
)
from clearhead_lab.experiments.crate.pets import MaskedImages, read_pets
from clearhead_lab.experiments.crate.training import variants
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN, differences
from clearhead_lab.experiments.experiment import Experiment, Figure, Report, Request
from clearhead_lab.experiments.study import Study, StudyRun, in_memory, train_study, untrained
from clearhead_lab.models.crate import Form
from clearhead_lab.models.native import draw_baseline
from clearhead_lab.training.evaluation import as_pixels
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import DataSettings

SIZE, PATCH, MASS, IMAGES, BATCH = 64, 8, 0.6, 1000, 100
STUDY = Study(
    small=in_memory(
        Recipe(epochs=25, batch_size=64, learning_rate=1e-3, warmup=2.0, label_smoothing=0.1),
        data=DataSettings(shift=2, flip=True), patch_size=PATCH, layers=6, heads=8,
    ),
    variants=variants(Form.RELEASED, crate_width=128, width=80, mlp_width=160),
)  # fmt: skip
SHOWN = 6
CENTRE, EVERYTHING = "a blob in the centre", "the whole image"
BASELINE = ", before training"

Scores = Mapping[str, Mapping[int, Mapping[str, float]]]
"""mIoU by model and seed: "best" head, "mean" over heads, and the number of the best "head"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The trained models, their scores, and the scores of masks that ignore the image."""

    data: MaskedImages
    runs: Sequence[StudyRun]
    scores: Scores
    controls: Mapping[str, float]
    images: int


def measure(request: Request, folder: Path) -> Results:
    """Train the models, and score the attention maps of each before and after training."""
    if request.data is None:
        raise InputError("give the folder of the Oxford-IIIT Pet set (images/, annotations/) with --data")
    data = read_pets(request.data, size=SIZE, progress=lambda done, total: request.progress("reading", done, total))
    runs = train_study(STUDY, request, data=data.images, folder=folder)
    images = min(request.inputs or IMAGES, len(data.objects))
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for number, run in enumerate(runs):
        request.progress(f"{run.variant}, seed {run.seed}: maps", number, len(runs))
        model = run.model()
        for name, subject in ((run.variant, model), (run.variant + BASELINE, draw_baseline(model, run.seed))):
            scores.setdefault(name, {})[run.seed] = score_heads(overlap_by_head(subject, data, images=images))
    return Results(data=data, runs=runs, scores=scores, controls=score_controls(data, images=images), images=images)


def mean_overlap(masks: Tensor, data: MaskedImages) -> Array:
    """Return the mIoU (images, heads) of masks of patches (images, heads, y, x)."""
    pixels = upsampled(masks, (SIZE, SIZE))
    truth, counted = (x[: len(pixels), None].expand(pixels.shape) for x in (data.objects, data.counted))
    return overlap(pixels, truth, counted=counted).mean


def last_maps(model: nn.Module, images: Tensor) -> Tensor:
    """Return the attention of the class token in the last layer, (images, heads, y, x)."""
    side = SIZE // PATCH
    calls: list[Heads] = []
    with torch.no_grad(), capture(model.eval(), keep=calls.append):
        model(as_pixels(images))
    return attention_maps(calls[-1], grid=(side, side))


def overlap_by_head(model: nn.Module, data: MaskedImages, *, images: int) -> Array:
    """Return the mIoU of the heads of the last layer, (images, heads)."""
    scores = []
    for first in range(0, images, BATCH):
        rows = slice(first, min(first + BATCH, images))
        maps = last_maps(model, data.images.test_images[rows])
        batch = MaskedImages(images=data.images, objects=data.objects[rows], counted=data.counted[rows])
        scores.append(mean_overlap(foreground(maps, mass=MASS), batch))
    return np.concatenate(scores)


def score_heads(heads: Array) -> dict[str, float]:
    """Choose the best head on the even images; return its mIoU and the mean over heads on the odd images."""
    chosen = best_head(heads[::2])
    return {"mean": float(np.nanmean(heads[1::2])), "best": float(np.nanmean(heads[1::2, chosen])), "head": chosen}


def score_controls(data: MaskedImages, *, images: int) -> dict[str, float]:
    """Return the mIoU, on the odd images, of masks that are the same for every image."""
    side = SIZE // PATCH
    masks = {CENTRE: foreground(centre_prior((side, side)), mass=MASS), EVERYTHING: torch.ones(side, side).bool()}
    subset = MaskedImages(images=data.images, objects=data.objects[:images], counted=data.counted[:images])
    return {
        name: float(np.nanmean(mean_overlap(mask.expand(images, 1, side, side), subset)[1::2]))
        for name, mask in masks.items()
    }


def report(results: Results, request: Request) -> Report:
    """Tabulate the mIoU of every model, before and after training, and of the controls."""
    scores, controls = results.scores, results.controls
    accuracy = float(np.mean([run.accuracy.value for run in results.runs]))
    failed = untrained(results.runs, results.data.images.test_labels)
    best = {
        name: {seed: score["best"] for seed, score in by_seed.items()}
        for name, by_seed in scores.items()
        if name not in failed
    }
    compared = differences({"best head": best}, [(name, name + BASELINE) for name in best if name + BASELINE in best])
    return Report(
        headline="; ".join(f"{name} {plus_minus(over_runs(list(each.values())))}" for name, each in best.items())
        + f"; {CENTRE} {decimals(controls[CENTRE])}",
        setting=(
            f"Oxford-IIIT Pet, {SIZE} x {SIZE} pixels, patches of {PATCH}, labels cat and dog; "
            f"{len(request.seed_list(STUDY.seeds))} seeds, {results.images} test images. The patches that hold "
            f"{MASS:.0%} of the class token's attention in the last layer are compared with masks drawn by people, "
            "without borders: intersection over union, mean of animal and background, mean over images. The best head "
            "is chosen on the even images; all scores are on the odd images. Intervals are 95 % Student intervals over "
            "seeds."
        ),
        sections=[("mIoU", _table(results))],
        remarks=(
            f"mIoU; mean accuracy of all runs {decimals(accuracy)}.",
            *(f"{d.variant}, best head, minus before training: {plus_minus(d.estimate)}, {d.words}" for d in compared),
            *(f"{name}: {DID_NOT_TRAIN}" for name in failed),
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={
            "scores": {name: {str(seed): dict(s) for seed, s in by_seed.items()} for name, by_seed in scores.items()},
            "controls": dict(controls),
            "accuracy": {f"{run.variant}, seed {run.seed}": run.accuracy.value for run in results.runs},
        },
    )


def _table(results: Results) -> Table:
    names = [*results.scores, *results.controls]

    def cells(measure: str) -> list[str]:
        models = [
            plus_minus(over_runs([score[measure] for score in by_seed.values()])) for by_seed in results.scores.values()
        ]
        return [*models, *(decimals(value) for value in results.controls.values())]

    accuracy = {name: [run.accuracy.value for run in results.runs if run.variant == name] for name in names}
    return [
        Field(title="map", cells=names, text=True),
        Field(title="best head", cells=cells("best")),
        Field(title="mean over heads", short="mean head", cells=cells("mean")),
        Field(title="accuracy", cells=[plus_minus(over_runs(accuracy[name])) for name in names], rank=1),
    ]


def draw(results: Results) -> Figure:
    """Show test images, the true masks, and the map of the best head of every model of the first seed."""
    data = results.data
    step = max(len(data.objects) // SHOWN, 1)
    images, truth = data.images.test_images[::step][:SHOWN], data.objects[::step][:SHOWN]
    pixels = [image.movedim(0, -1).expand(-1, -1, 3).numpy() for image in images]
    columns: list[tuple[str, Sequence[NDArray[Any]]]] = [
        ("image", pixels),
        ("animal", [_masked(image, mask.numpy()) for image, mask in zip(pixels, truth, strict=True)]),
    ]
    for run in results.runs:
        if run.seed == results.runs[0].seed:
            maps = last_maps(run.model(), images)[:, int(results.scores[run.variant][run.seed]["head"])]
            masks = upsampled(foreground(maps, mass=MASS), (SIZE, SIZE))
            columns += [
                (run.variant.removesuffix(", released"), [each.numpy() for each in maps]),
                (f"its {MASS:.0%}", [_masked(i, mask.numpy()) for i, mask in zip(pixels, masks, strict=True)]),
            ]
    return _draw_images(columns, title="Attention of the class token, as maps and masks")


def _draw_images(columns: Sequence[tuple[str, Sequence[NDArray[Any]]]], *, title: str) -> Figure:
    """Return a grid of images (y, x) or (y, x, 3), each column under its name; (y, x) is a map, dark where largest."""
    rows = max((len(images) for _, images in columns), default=0)
    figure, panels = make_panels(rows * len(columns), title=title, columns=len(columns))
    figure.set_size_inches(1.3 * len(columns), 1.25 * rows + 0.3)
    for axes, (row, (name, images)) in zip(panels, itertools.product(range(rows), columns), strict=True):
        axes.set_axis_off()
        if row == 0:
            axes.set_title(name, fontsize=8, loc="center")
        if row < len(images):
            vmax = float(images[row].max()) or 1.0
            axes.imshow(images[row], cmap="Blues", vmin=0, vmax=vmax, interpolation="none")
    return figure


def _masked(pixels: NDArray[np.uint8], mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the image, pale outside the mask."""
    pale = 0.25 * pixels + 0.75 * 255
    return np.where(mask[..., None], pixels, pale).astype(np.uint8)


SEGMENTATION = Experiment(
    name="crate/segmentation",
    title="Emergent segmentation",
    reproduces="attention maps as segmentations (Yu et al. 2023, 2308.16271), with controls that ignore the image",
    cost="1 h",
    measure=measure,
    report=report,
    options=frozenset({"data", "epochs", "seeds", "inputs"}),
)
