"""A study: one recipe trained with variants of its model from several seeds, at a small scale or at the paper's.

The recipe is one by name, with data on disk, or one of images in memory. The tables compare variants over seeds.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.report.tables import Estimate, Field, Table, decimals, mean_of, over_runs, plus_minus
from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.experiments.cache import cached
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN, POWER, Difference, Floor, differences
from clearhead_lab.experiments.experiment import SHARED_RUNS, Experiment, Report, Request
from clearhead_lab.models.native import draw_baseline, load_native
from clearhead_lab.training.estimate import estimate_run
from clearhead_lab.training.evaluation import Accuracy
from clearhead_lab.training.loop import LOG, DivergedError
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import DataSettings, RecipeFile, read_recipe_file
from clearhead_lab.training.run import MODEL_FOLDER, held_out_images, prepare_run, run_recipe
from clearhead_lab.training.tasks import Evaluate

Settings = Mapping[str, Any]
Variants = Mapping[str, Settings]
"""Settings of the model, which replace those of the recipe, by the name of the variant."""


def first_layers(operator: Settings, count: int = 1, *, others: str = "symmetric") -> Settings:
    """Return the attention with an operator in the first layers and another in the others, as recipes have it."""
    return {"operator": others, "layers": dict.fromkeys(range(count), operator)}


CLAMPED_KEYS: Settings = {"operator": "clamped", "strength": 4.0}
RPC: Settings = {"operator": "rpc", "iterations": 4, "strength": 4.0}
VARIANTS: Variants = {
    "softmax": {"attention": "softmax"},
    "symmetric": {"attention": "symmetric"},
    "clamped keys": {"attention": first_layers(CLAMPED_KEYS)},
    "RPC, layer 0": {"attention": first_layers(RPC)},
    "RPC, all layers": {"attention": {**RPC, "iterations": 2, "strength": 3.0}},
    "asymmetric RPC, layer 0": {"attention": first_layers({**RPC, "queries": "given"}, others="softmax")},
    "scaled": {"attention": "scaled"},
}
PLAIN = DataSettings()


def variants_named(*names: str) -> Variants:
    """Return some of `VARIANTS`."""
    return {name: VARIANTS[name] for name in names}


def in_memory(recipe: Recipe, *, data: DataSettings = PLAIN, **model: Any) -> RecipeFile:
    """Return the recipe of a classification of images that are in memory. model: its settings"""
    return RecipeFile(name="in-memory", title="", task="classification", model=model, data=data, recipe=recipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The recipes of the two scales, the variants, and the number of seeds of each.

    small, paper: a recipe, or the name of one
    paper_variants: settings that replace those of a variant at the scale of the paper
    """

    small: str | RecipeFile
    paper: str = ""
    variants: Variants
    seeds: int = 3
    paper_variants: Variants = field(default_factory=dict)

    def recipe(self, request: Request, variant: str, seed: int) -> RecipeFile:
        """Return the recipe of a variant at the scale of the request."""
        replaced = self.paper_variants if request.scale == "paper" else {}
        named = self.paper if request.scale == "paper" else self.small
        file = read_recipe_file(named) if isinstance(named, str) else named
        recipe = dataclasses.replace(file.recipe, seed=seed)
        if request.epochs is not None:
            recipe = dataclasses.replace(recipe, epochs=request.epochs, warmup=min(recipe.warmup, request.epochs / 4))
        settings = replaced.get(variant, self.variants[variant])
        return dataclasses.replace(file, model={**file.model, **settings}, recipe=recipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One trained variant: its log, its number of parameters, and the folder of its model; or why it diverged."""

    variant: str
    seed: int
    folder: Path
    log: tuple[Mapping[str, Any], ...] = ()
    parameters: int
    reason: str = ""

    @property
    def accuracy(self) -> Accuracy:
        """The test accuracy after the last epoch."""
        right, images = self.log[-1]["right"], self.log[-1]["images"]
        if not 0 <= right <= images:
            raise InputError(
                f"{self.folder / LOG} has {right} of {images} images right, which cannot be; delete the folder and "
                "train again"
            )
        return Accuracy(right=right, images=images)

    def model(self) -> nn.Module:
        """Return the trained model."""
        return load_native(self.folder / MODEL_FOLDER).eval()

    def initial_model(self) -> nn.Module:
        """Return the model as it was before training."""
        return draw_baseline(self.model(), self.seed)


def train_run(
    file: RecipeFile,
    data: Path | ImageSet,
    folder: Path,
    request: Request,
    *,
    variant: str,
    after_epoch: Evaluate | None = None,
    progress: Callable[[int, int, float], None],
) -> StudyRun:
    """Train the model of a recipe, unless that is done, and return the run; with the reason if it diverges."""
    run: dict[str, Any] = {"variant": variant, "seed": file.recipe.seed, "folder": folder}
    try:
        trained = run_recipe(file, data, folder, after_epoch=after_epoch, progress=progress, notice=request.notice)
    except DivergedError as error:
        model = prepare_run(file, data).model
        return StudyRun(**run, parameters=sum(p.numel() for p in model.parameters()), reason=str(error))
    return StudyRun(**run, log=trained.log, parameters=trained.parameters)


def train_all(
    study: Study,
    request: Request,
    *,
    data: ImageSet | None = None,
    folder: Path | None = None,
    after_epoch: Evaluate | None = None,
) -> list[StudyRun]:
    """Train every variant from every seed; finished runs are not repeated. A run that diverges has a reason.

    data: images in memory; by default those that the request names
    folder: of the runs; by default one that all studies of the recipe share
    after_epoch: measures the model after every epoch, for the log; runs with other measures need a folder of their own

    All variants of one seed come before the next seed, so that an interrupted study can be compared so far.
    """
    cells = [(variant, seed) for seed in request.seed_list(study.seeds) for variant in study.variants]
    runs = []
    for number, (variant, seed) in enumerate(cells):
        file = study.recipe(request, variant, seed)

        def progress(
            step: int, steps: int, loss: float, number: int = number, cell: str = f"{variant}, seed {seed}"
        ) -> None:
            request.progress(f"{cell}: loss {loss:.3f}", round(100 * (number + step / steps)), 100 * len(cells))

        name = "-".join(variant.replace(",", "").lower().split())
        shared = request.out / SHARED_RUNS / f"{file.name}-{file.recipe.epochs}-epochs"
        runs.append(
            train_run(
                file,
                _data_of(request, file) if data is None else data,
                (folder or shared) / f"{name}-{seed}",
                request,
                variant=variant,
                after_epoch=after_epoch,
                progress=progress,
            )
        )
    return runs


def train_study(study: Study, request: Request, **options: Any) -> list[StudyRun]:
    """Return the runs of `train_all` without those that diverge, which are named to the user."""
    runs = train_all(study, request, **options)
    for run in runs:
        if run.reason:
            request.notice(f"{run.variant}, seed {run.seed}: {run.reason}")
    return [run for run in runs if not run.reason]


def measure_study(
    runs: Sequence[StudyRun],
    request: Request,
    folder: Path,
    measure: Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    packages: Sequence[str],
) -> dict[str, dict[int, Any]]:
    """Return the result of `measure` for every run, by variant and seed; results are cached.

    measure: called with the folder of the run and the data, as text, the seed, the loss of the last epoch, which
        identifies the weights, and `settings`
    packages: as in `cached`
    """
    measured: dict[str, dict[int, Any]] = {}
    for number, run in enumerate(runs):
        request.progress(f"measuring: {run.variant}, seed {run.seed}", number, len(runs))
        of_run = {"folder": str(run.folder), "data": str(request.data), "seed": run.seed, "loss": run.log[-1]["loss"]}
        path = folder / "measured" / f"{run.folder.name}.json"
        results = cached(path, measure, {**of_run, **settings}, packages=packages, notice=request.notice)
        measured.setdefault(run.variant, {})[run.seed] = results
    return measured


def study_images(study: Study, request: Request, count: int) -> Tensor:
    """Return the first test images of a study of classification, (count, c, y, x), from 0 to 1."""
    file = study.recipe(request, next(iter(study.variants)), request.seed)
    return held_out_images(file, _data_of(request, file), count)


def _data_of(request: Request, file: RecipeFile) -> Path:
    if request.data is None:
        raise InputError(f"name the data with --data ({file.data.get})")
    return request.data


def dry_run(study: Study, request: Request) -> Report:
    """Return the sizes of every variant's run; nothing is trained."""
    files = {variant: study.recipe(request, variant, request.seed) for variant in study.variants}
    sizes = {variant: estimate_run(file) for variant, file in files.items()}
    recipe = next(iter(files.values())).recipe
    table = [
        Field(title="variant", cells=list(sizes), text=True),
        Field(title="parameters", cells=[f"{size.parameters:,}" for size in sizes.values()]),
        Field(title="multiply-adds", cells=[f"{size.multiply_adds / 1e9:.3g} G" for size in sizes.values()]),
        Field(title="steps", cells=[f"{size.steps:,}" for size in sizes.values()], rank=1),
        Field(
            title="memory of activations",
            short="activations",
            cells=[f"{size.activation_bytes / 1e9:.3g} GB" for size in sizes.values()],
            rank=2,
        ),
        Field(title="GPU hours", cells=[f"{size.gpu_hours:.3g}" for size in sizes.values()]),
    ]
    seeds = len(request.seed_list(study.seeds))
    hours = seeds * sum(size.gpu_hours for size in sizes.values())
    shape = next(iter(sizes.values())).inputs
    return Report(
        headline=f"dry run: {len(files)} variants, {seeds} seeds, {hours:,.3g} GPU hours or more",
        setting=f"Batches {shape}, {recipe.epochs} epochs, {recipe.optimizer}, learning rate {recipe.learning_rate}. "
        "Activations are those of one process. GPU hours assume 30% of an A100's peak.",
        sections=[("What the runs will take", table)],
    )


def study_experiment(
    study: Study,
    name: str,
    measure: Callable[[Request, Path], Any],
    report: Callable[[Any, Request], Report],
    *,
    options: Sequence[str] = ("data", "epochs", "inputs", "seeds"),
    **words: str,
) -> Experiment:
    """Return an experiment of the paper at both scales. A dry run reports the sizes of the study's runs instead."""
    return Experiment(
        name=f"paper/{name}",
        measure=lambda request, folder: None if request.dry_run else measure(request, folder),
        report=lambda results, request: dry_run(study, request) if request.dry_run else report(results, request),
        options=frozenset({*options, "scale", "dry_run"}),
        **words,
    )


def chance(runs: Sequence[StudyRun], measure: str = "accuracy") -> Floor:
    """Return the floor of an accuracy: that of classes drawn at random."""
    classes: int = runs[0].model().config.classes  # type: ignore[union-attr, assignment]
    return Floor(measure=measure, value=1 / classes, name="chance")


def untrained(runs: Sequence[StudyRun], labels: Tensor) -> tuple[str, ...]:
    """Return the variants whose accuracy does not exceed that of the most common label of the test images."""
    floor = Floor(measure="accuracy", value=float(labels.bincount().max()) / len(labels), name="the majority class")
    measured: dict[str, dict[int, dict[str, float]]] = {}
    for run in runs:
        measured.setdefault(run.variant, {})[run.seed] = {floor.measure: run.accuracy.value}
    trained = floor.trained(measured)
    return tuple(variant for variant in measured if variant not in trained)


def how_compared(floor: Floor) -> str:
    """Return what intervals, detectable differences and untrained variants are, for the page."""
    return (
        "Means over seeds with 95% intervals. Detectable: the smallest difference that a paired t-test at 5% finds in "
        f"{POWER:.0%} of repetitions with as many seeds and this spread, before adjustment. A variant whose interval "
        f"reaches {floor.name}, {decimals(floor.value, _digits(floor.value))}, did not train."
    )


def measured_table(
    runs: Sequence[StudyRun],
    measured: Mapping[str, Mapping[int, Mapping[str, float]]],
    titles: Mapping[str, str],
    *,
    floor: Floor,
) -> Table:
    """Return a table of means over seeds with intervals: a row for each variant, a column for each measure.

    A variant that did not train has only the measure of the floor, with these words.

    measured: by variant, seed and measure; titles: of the columns, by measure
    """
    variants, trained = list(measured), floor.trained(measured)
    parameters = {run.variant: run.parameters for run in runs}

    def cell(variant: str, name: str, form: Callable[[Estimate | None], str]) -> str:
        if variant not in trained and name != floor.measure:
            return DID_NOT_TRAIN
        text = form(over_runs([values.get(name) for values in measured[variant].values()]))
        return text if variant in trained else f"{text}, {DID_NOT_TRAIN}"

    columns = [
        Field(
            title=title,
            cells=[cell(variant, name, plus_minus) for variant in variants],
            narrow=[cell(variant, name, mean_of) for variant in variants],
            rank=0 if number < 2 else 1,
        )
        for number, (name, title) in enumerate(titles.items())
    ]
    return [
        Field(title="variant", cells=variants, text=True),
        Field(title="parameters", cells=[f"{parameters[variant]:,}" for variant in variants], rank=2),
        Field(title="seeds", cells=[str(len(measured[variant])) for variant in variants], rank=2),
        *columns,
    ]


def compared(
    measured: Mapping[str, Mapping[int, Mapping[str, float]]],
    titles: Mapping[str, str],
    *,
    baseline: str,
    floor: Floor,
) -> Table:
    """Return the paired differences of every variant from the baseline in every measure, with adjusted verdicts.

    Nothing is computed from a variant that did not train: one row names it. If the baseline did not, all are named.
    """
    trained = floor.trained(measured)
    others = [variant for variant in measured if variant != baseline]
    tested = [variant for variant in others if variant in trained and baseline in trained]
    by_measure: dict[str, dict[str, dict[int, float]]] = {
        title: {
            variant: {seed: values[name] for seed, values in measured[variant].items() if name in values}
            for variant in (*tested, baseline)
            if variant in trained
        }
        for name, title in titles.items()
    }
    found = differences(by_measure, [(variant, baseline) for variant in tested])
    left_out = {
        variant: f"{baseline} {DID_NOT_TRAIN}" if variant in trained else DID_NOT_TRAIN
        for variant in others
        if variant not in tested
    }
    dashes = ["-"] * len(left_out)
    return [
        Field(title="variant", cells=[*(item.variant for item in found), *left_out], text=True),
        Field(title="measure", cells=[*(item.measure for item in found), *dashes], text=True),
        Field(title=f"difference from {baseline}", cells=[*map(_difference_cell, found), *dashes]),
        Field(title="detectable", cells=[*map(_detectable_cell, found), *dashes], rank=1),
        Field(title="adjusted p", cells=[*(decimals(item.adjusted) for item in found), *dashes], rank=1),
        Field(title="verdict", cells=[*(item.verdict for item in found), *left_out.values()], text=True),
    ]


def _difference_cell(item: Difference) -> str:
    """Return the difference with its interval, or alone where all seeds have the same."""
    return mean_of(item.estimate) if item.detectable is None else plus_minus(item.estimate)


def _detectable_cell(item: Difference) -> str:
    """Return the smallest detectable difference with as many decimals as the difference has."""
    return decimals(item.detectable, _digits(max(abs(item.estimate.mean), item.detectable or 0)))


def _digits(value: float) -> int:
    return 3 if value < 10 else 1
