"""Whether attention finds the object: maps of the class token beside masks, and beside what has not seen the image."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.capturing import capture
from clearhead.errors import InputError
from clearhead.experiments.crate.attention_maps import (
    attention_maps,
    best_head,
    centre_prior,
    foreground,
    overlap,
    upsampled,
)
from clearhead.experiments.crate.pets import MaskedImages, read_pets
from clearhead.experiments.crate.runs import PETS_PLAN, Trained, train_all
from clearhead.experiments.estimates import differences
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, seeds_of, write_page
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals, over_runs, plus_minus
from clearhead.heads import Heads
from clearhead.models.native import untrained
from clearhead.numerics.moments import Array
from clearhead.report.tiles import Pixels, heat, masked, tile_picture
from clearhead.training.evaluation import as_pixels

__all__ = ["SEGMENTATION"]

NAME = "crate/segmentation"
SIZE, MASS, IMAGES, BATCH = 64, 0.6, 1000, 100
SHOWN = 6
MIDDLE, EVERYTHING = "a blob in the middle", "all of the image"
BEFORE = ", before training"


def fits(found: Tensor, data: MaskedImages) -> Array:
    """mIoU of masks of patches, (images, heads) of (images, heads, y, x)."""
    pixels = upsampled(found, (SIZE, SIZE))
    some = slice(len(pixels))
    truth, counted = (x[some, None].expand(pixels.shape) for x in (data.objects, data.counted))
    return overlap(pixels, truth, counted=counted).mean


def last_maps(model: nn.Module, images: Tensor) -> Tensor:
    """Where the class token looks in the last layer, (images, heads, y, x)."""
    side = SIZE // PETS_PLAN.patch_size
    calls: dict[str, Heads] = {}

    def keep(heads: Heads) -> None:
        calls["last"] = heads

    with torch.no_grad(), capture(model.eval(), keep=keep):
        model(as_pixels(images))
    return attention_maps(calls["last"], grid=(side, side))


def by_head(model: nn.Module, data: MaskedImages, *, images: int) -> Array:
    """mIoU of the last layer's heads, (images, heads)."""
    kept: list[Array] = []
    for first in range(0, images, BATCH):
        some = slice(first, min(first + BATCH, images))
        maps = last_maps(model, data.images.test_images[some])
        part = MaskedImages(images=data.images, objects=data.objects[some], counted=data.counted[some])
        kept.append(fits(foreground(maps, mass=MASS), part))
    return np.concatenate(kept)


def scores(heads: Array) -> dict[str, float]:
    """Mean over heads, and the head that is best on the even images, on the odd ones; both on the odd ones."""
    chosen = best_head(heads[::2])
    return {"mean": float(np.nanmean(heads[1::2])), "best": float(np.nanmean(heads[1::2, chosen])), "head": chosen}


def blind(data: MaskedImages, *, images: int) -> dict[str, float]:
    """mIoU of masks that are the same for every image, on the odd ones."""
    side = SIZE // PETS_PLAN.patch_size
    masks = {MIDDLE: foreground(centre_prior((side, side)), mass=MASS), EVERYTHING: torch.ones(side, side).bool()}
    some = MaskedImages(images=data.images, objects=data.objects[:images], counted=data.counted[:images])
    found = {name: fits(mask.expand(images, 1, side, side), some)[1::2] for name, mask in masks.items()}
    return {name: float(np.nanmean(each)) for name, each in found.items()}


def _run(request: Request, folder: Path) -> Outcome:
    if request.data is None:
        raise InputError("give the folder of the Oxford-IIIT Pet set (images/, annotations/) with --data")
    data = read_pets(request.data, size=SIZE, progress=lambda done, all_: request.tell("reading", done, all_))
    trained = train_all(data.images, PETS_PLAN, request, folder)
    images = min(request.inputs or IMAGES, len(data.objects))
    found: dict[str, dict[int, dict[str, float]]] = {}
    for place, run in enumerate(trained):
        request.tell(f"{run.name}, seed {run.seed}: maps", place, len(trained))
        model = run.model()
        found.setdefault(run.name, {})[run.seed] = scores(by_head(model, data, images=images))
        twin = scores(by_head(untrained(model, run.seed), data, images=images))
        found.setdefault(run.name + BEFORE, {})[run.seed] = twin
    plain = blind(data, images=images)
    write_text(folder / PICTURE, _picture(trained, found, data))
    return _outcome(request, folder, trained, found, plain, images)


def _outcome(
    request: Request,
    folder: Path,
    trained: Sequence[Trained],
    found: Mapping[str, Mapping[int, Mapping[str, float]]],
    plain: Mapping[str, float],
    images: int,
) -> Outcome:
    table = _table(trained, found, plain)
    command = f"{command_of(NAME, request)} --data FOLDER"
    base = float(np.mean([run.right / run.images for run in trained]))
    seeds = len(seeds_of(request, PETS_PLAN.seeds))
    setting = (
        f"Oxford-IIIT Pet, {SIZE} x {SIZE} pixels, patches of {PETS_PLAN.patch_size}, labels cat and dog; "
        f"{seeds} seeds, {images} test images. The patches that hold {MASS:.0%} of the class "
        "token's attention in the last layer, beside masks drawn by people, borders left out: intersection over union, "
        "mean of animal and background, mean over images. The best head is chosen on every other image and scored, as "
        "all else, on those between. Intervals are Student's over seeds."
    )
    page = write_page(
        folder, title="Emergent segmentation", command=command, setting=setting, tables=[("mIoU", as_markdown(table))]
    )
    told = differences(
        {"best head": {name: {seed: s["best"] for seed, s in runs.items()} for name, runs in found.items()}},
        [(name, name + BEFORE) for name in found if not name.endswith(BEFORE)],
    )
    return Outcome(
        headline="; ".join(
            f"{name} {plus_minus(over_runs([s['best'] for s in runs.values()]))}" for name, runs in found.items()
        )
        + f"; {MIDDLE} {decimals(plain[MIDDLE])}",
        tables=as_columns(table),
        remarks=(
            f"mIoU; mean accuracy of all runs {decimals(base)}.",
            *(
                f"{d.variant}, best head, more than before training by {plus_minus(d.estimate)}: {d.verdict}"
                for d in told
            ),
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={
            "command": command,
            "found": {name: {str(seed): dict(s) for seed, s in runs.items()} for name, runs in found.items()},
            "blind": dict(plain),
            "accuracy": {f"{run.name}, seed {run.seed}": run.accuracy for run in trained},
        },
    )


def _table(
    trained: Sequence[Trained], found: Mapping[str, Mapping[int, Mapping[str, float]]], plain: Mapping[str, float]
) -> list[Field]:
    names = [*found, *plain]

    def cells(measure: str) -> list[str]:
        models = [plus_minus(over_runs([s[measure] for s in runs.values()])) for runs in found.values()]
        return [*models, *(decimals(value) for value in plain.values())]

    right = {name: plus_minus(over_runs([r.accuracy for r in trained if r.name == name])) for name in found}
    return [
        Field(title="map", cells=names, words=True),
        Field(title="best head", cells=cells("best")),
        Field(title="mean over heads", short="mean head", cells=cells("mean")),
        Field(title="accuracy", cells=[right.get(name, "-") if BEFORE not in name else "-" for name in names], rank=1),
    ]


def _picture(
    trained: Sequence[Trained], found: Mapping[str, Mapping[int, Mapping[str, float]]], data: MaskedImages
) -> str:
    """Some test images, the animal as people drew it, and what the best head of every model of the first seed keeps."""
    first = [run for run in trained if run.seed == trained[0].seed]
    apart = max(len(data.objects) // SHOWN, 1)
    images, truth = data.images.test_images[::apart][:SHOWN], data.objects[::apart][:SHOWN]
    columns: dict[str, list[Pixels]] = {"image": [], "animal": []}
    for image, mask in zip(images, truth, strict=True):
        pixels = image.movedim(0, -1).numpy()
        columns["image"].append(pixels)
        columns["animal"].append(masked(pixels, mask.numpy()))
    for run in first:
        maps = last_maps(run.model(), images)[:, int(found[run.name][run.seed]["head"])]
        columns[run.name.removesuffix(", released")] = [heat(each.numpy()) for each in maps]
        kept = upsampled(foreground(maps, mass=MASS), (SIZE, SIZE))
        columns[f"its {MASS:.0%}" + " " * len(columns)] = [
            masked(tile, mask.numpy()) for tile, mask in zip(columns["image"], kept, strict=True)
        ]
    rows = [("", [tiles[place] for tiles in columns.values()]) for place in range(len(images))]
    return tile_picture(rows, columns=[name.strip() for name in columns], title="Where the class token looks")


SEGMENTATION = Experiment(
    name=NAME,
    reproduces="attention maps as segmentations (Yu et al. 2023, arXiv 2308.16271), beside what has not seen the image",
    cost="1 h",
    run=_run,
    options=frozenset({"data", "epochs", "seeds", "inputs"}),
)
