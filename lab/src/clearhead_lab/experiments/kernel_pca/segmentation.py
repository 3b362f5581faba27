"""Table 6: attention variants in segmentation, clean and corrupted.

The corruptions are those of `clearhead_lab.robustness.corruptions`: eight kinds with our own constants. Masks stay as
they are.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.report.plots import finish_panel, make_panels
from clearhead.report.tables import Field, Table
from clearhead_lab.data.augmentation import image_transform
from clearhead_lab.data.batches import all_samples
from clearhead_lab.experiments.estimates import Floor, decimals, plot_mean
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.study import (
    CLAMPED_KEYS,
    RPC,
    Settings,
    Study,
    StudyRun,
    Variants,
    compared,
    first_layers,
    how_compared,
    measure_study,
    measured_table,
    study_experiment,
    train_study,
)  # fmt: skip
from clearhead_lab.robustness.corruptions import CORRUPTIONS
from clearhead_lab.training.evaluation import Overlap, measure_overlap
from clearhead_lab.training.recipe_file import RecipeFile, read_recipe_file
from clearhead_lab.training.run import open_held_out

SEVERITIES = (1, 3, 5)
IMAGES = 500
"""Images that are evaluated at the small scale, evenly spaced in the held-out set."""
MEASURES = {"mean_iou": "mean IoU", "mean_accuracy": "mean accuracy", "pixel_accuracy": "pixel accuracy"}
CLEAN, CORRUPTED, MAJORITY = "clean", "corrupted", "majority"
Results = Mapping[str, Mapping[str, float]]
"""Measures by condition: clean, a corruption with its severity, or the majority baseline."""
CLAIMED = (
    "On ADE20K, a Segmenter with RPC improves substantially over one with symmetric attention in mean accuracy and "
    "mean IoU, clean and corrupted (Table 6). The cells of the table are not at hand."
)
DIFFER = (
    "The small model is trained on Oxford Pets, two classes at 64 pixels, from random weights; the paper's is a "
    "DeiT-tiny that was trained on ImageNet-1K, fine-tuned on the 150 classes of ADE20K at 512 pixels. Its decoder "
    "ends in a norm over classes, the small model's in a gain and a bias for each class: over two classes the norm "
    "passes almost no gradient, and an earlier version of this page measured that instead of attention. The "
    "corruptions have our own constants, so that they do not compare with those of ImageNet-C."
)


def _both(first: Settings, others: str = "symmetric") -> Settings:
    """Return the settings with an operator in block 0 of the encoder and of the decoder, and another elsewhere."""
    return dict.fromkeys(("attention", "decoder_attention"), first_layers(first, others=others))


VARIANTS: Variants = {
    "softmax": _both({"operator": "softmax"}, "softmax"),
    "symmetric": _both({"operator": "symmetric"}),
    "clamped keys": _both(CLAMPED_KEYS),
    "RPC": _both({**RPC, "iterations": 6}),
}
STUDY = Study(small="segmenter-pets-small", paper="segmenter-ade20k", variants=VARIANTS)


def corrupted_overlap(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, classes: int, seed: int
) -> dict[str, Overlap]:
    """Return the overlap on clean images, and under every corruption and severity as in "blur 3"."""
    counts: dict[str, Tensor] = {}
    generators = {
        f"{corruption.name} {severity}": torch.Generator().manual_seed(seed + number)
        for number, (corruption, severity) in enumerate(_conditions())
    }
    for images, masks in batches:
        changed = {CLEAN: images}
        for corruption, severity in _conditions():
            name = f"{corruption.name} {severity}"
            changed[name] = corruption(images, severity=severity, generator=generators[name])
        for name, inputs in changed.items():
            part = measure_overlap(model, [(inputs, masks)], classes=classes).counts
            counts[name] = counts[name] + part if name in counts else part
    return {name: Overlap(counts=total) for name, total in counts.items()}


def _conditions() -> list[tuple[Any, int]]:
    return [(corruption, severity) for corruption in CORRUPTIONS for severity in SEVERITIES]


def evaluated_batches(file: RecipeFile, data: Path, *, images: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of held-out images and masks. images: about this number, evenly spaced in the set; None for all.

    The sets are sorted by class, so that the first images would be of a few classes.
    """
    held_out = open_held_out(data, target=file.data.target, border_class=file.data.border_class)
    step = max(len(held_out) // (images or len(held_out)), 1)
    transform = image_transform(file.data.augmentation, file.data.image_size, train=False)
    for pixels, masks in all_samples(held_out, batch_size=step * file.recipe.batch_size, transform=transform):
        yield pixels[::step], masks[::step]


def _measure(request: Request, folder: Path) -> Any:
    runs = train_study(STUDY, request)
    settings = {"images": _images(request), "recipe": STUDY.paper if request.scale == "paper" else STUDY.small}
    packages = ("operators", "models", "robustness", "training", "data")
    return runs, measure_study(runs, request, folder, _corrupt_run, settings, packages=packages)


def _images(request: Request) -> int | None:
    return request.inputs or (None if request.scale == "paper" else IMAGES)


def _corrupt_run(*, folder: str, data: str, images: int | None, seed: int, recipe: str, loss: float) -> Results:
    """Measure the model of a run. `loss` of its last epoch identifies the weights."""
    run = StudyRun(variant="", seed=seed, folder=Path(folder), log=(), parameters=0)
    model = run.model().to("cuda" if torch.cuda.is_available() else "cpu")
    batches = evaluated_batches(read_recipe_file(recipe), Path(data), images=images)
    overlaps = corrupted_overlap(model, batches, classes=model.config.classes, seed=seed)  # type: ignore[union-attr, arg-type]
    results = {name: _as_numbers(overlap) for name, overlap in overlaps.items()}
    return {**results, MAJORITY: _as_numbers(overlaps[CLEAN].of_majority())}


def _as_numbers(overlap: Overlap) -> dict[str, float]:
    values = (overlap.mean, overlap.mean_accuracy, overlap.pixel_accuracy)
    return dict(zip(MEASURES, values, strict=True))


def corrupted_mean(results: Results, measure: str, severity: int | None = None) -> float:
    """Return the mean of a measure over all corruptions, at one severity or at all."""
    names = [
        f"{corruption.name} {grade}" for corruption, grade in _conditions() if severity is None or grade == severity
    ]
    return sum(results[name][measure] for name in names) / len(names)


def _summary(results: Results) -> dict[str, float]:
    """Return every measure on clean and on corrupted images."""
    clean = {f"{CLEAN} {name}": results[CLEAN][name] for name in MEASURES}
    return {**clean, **{f"{CORRUPTED} {name}": corrupted_mean(results, name) for name in MEASURES}}


def _report(results: Any, request: Request) -> Report:
    runs: list[StudyRun] = results[0]
    measured: Mapping[str, Mapping[int, Results]] = results[1]
    summary = {v: {seed: _summary(values) for seed, values in seeds.items()} for v, seeds in measured.items()}
    titles = {
        f"{state} {name}": f"{title}, {state}" for name, title in MEASURES.items() for state in (CLEAN, CORRUPTED)
    }
    majority = next(iter(next(iter(measured.values())).values()))[MAJORITY]
    floor = Floor(measure=f"{CLEAN} mean_iou", value=majority["mean_iou"], name="the majority class")
    trained = {variant: measured[variant] for variant in floor.trained(summary)}
    means = {v: sum(each[CLEAN]["mean_iou"] for each in seeds.values()) / len(seeds) for v, seeds in trained.items()}
    best = max(means, key=means.__getitem__, default="no variant trained")
    recipe = STUDY.recipe(request, next(iter(measured)), request.seed)
    images = "all" if _images(request) is None else f"about {_images(request):,} evenly spaced"
    return Report(
        headline=f"highest clean mean IoU: {best}, {decimals(means.get(best))}, {floor.name} {decimals(floor.value)}; "
        f"{len(runs)} runs",
        setting=f"Recipe {recipe.name}, {recipe.recipe.epochs} epochs; {images} held-out images. Corrupted is the mean "
        f"over {len(CORRUPTIONS)} corruptions at severities {', '.join(map(str, SEVERITIES))}; masks are unchanged. "
        f"{how_compared(floor)}",
        sections=[
            ("Claimed", CLAIMED),
            ("Measured", measured_table(runs, summary, titles, floor=floor)),
            ("Differences from symmetric attention", compared(summary, titles, baseline="symmetric", floor=floor)),
            ("Majority baseline", _majority_table(majority)),
            ("Mean IoU by corruption, all severities", _by_corruption(trained)),
            ("Why they differ", DIFFER),
        ],
        figures={"corruptions.svg": lambda: _draw(trained)},
        facts={"measured": {name: {str(s): dict(v) for s, v in seeds.items()} for name, seeds in measured.items()}},
    )


def _majority_table(majority: Mapping[str, float]) -> Table:
    """Return the measures of a prediction that gives every pixel the most frequent class."""
    return [Field(title=title, cells=[decimals(majority[name])]) for name, title in MEASURES.items()]


def _by_corruption(measured: Mapping[str, Mapping[int, Results]]) -> Table:
    """Return the mean IoU over seeds and severities: a row for each corruption, a column for each variant."""
    kinds = [corruption.name for corruption in CORRUPTIONS]
    columns = [
        Field(title=variant, cells=[decimals(_mean_over(seeds.values(), kind)) for kind in kinds])
        for variant, seeds in measured.items()
    ]
    return [Field(title="corruption", cells=kinds, text=True), *columns]


def _mean_over(runs: Collection[Results], kind: str) -> float:
    values = [results[f"{kind} {severity}"]["mean_iou"] for results in runs for severity in SEVERITIES]
    return sum(values) / len(values)


def _draw(measured: Mapping[str, Mapping[int, Results]]) -> Any:
    """Draw mean IoU and pixel accuracy by the severity of corruptions; 0 is clean."""
    figure, panels = make_panels(2, title="Segmentation by the severity of corruptions")
    for axes, name in zip(panels, ("mean_iou", "pixel_accuracy"), strict=True):
        for colour, (variant, seeds) in enumerate(measured.items()):
            curves = [
                [corrupted_mean(r, name, severity) if severity else r[CLEAN][name] for r in seeds.values()]
                for severity in (0, *SEVERITIES)
            ]
            plot_mean(axes, [0, *SEVERITIES], curves, label=variant, colour=colour)
        title = MEASURES[name]
        finish_panel(axes, title=f"{title[0].upper()}{title[1:]}", x="severity, mean over corruptions", y=title)
    return figure


SEGMENTER = study_experiment(
    STUDY,
    "segmentation",
    _measure,
    _report,
    title="Attention variants in segmentation, clean and corrupted",
    reproduces="softmax, symmetric, clamped keys and RPC in a Segmenter on Oxford Pets with corrupted images",
    source="Table 6",
    cost="40 min",
    full_cost="4 GPU hours",
)
