"""A study: one recipe trained with attention variants from several seeds, at a small scale or at the paper's."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.report.tables import Estimate, Field, Table, decimals, mean_of, over_runs, plus_minus
from clearhead_lab.experiments.cache import cached
from clearhead_lab.experiments.estimates import POWER, Difference, differences
from clearhead_lab.experiments.experiment import SHARED_RUNS, Report, Request
from clearhead_lab.experiments.floor import DID_NOT_TRAIN, Floor
from clearhead_lab.models.native import load_native
from clearhead_lab.training.estimate import estimate_run
from clearhead_lab.training.loop import DivergedError
from clearhead_lab.training.recipe_file import RecipeFile, read_recipe_file
from clearhead_lab.training.run import MODEL_FOLDER, held_out_images, run_recipe
from clearhead_lab.training.tasks import Evaluate

__all__ = [
    "ASYMMETRIC_RPC", "CLAMPED", "RPC_ALL", "RPC_FIRST", "SCALED", "SOFTMAX", "SYMMETRIC", "Study", "StudyRun",
    "Variants", "chance", "compared", "dry_run", "first_layers", "how_compared", "measure_study", "measured_table",
    "study_images", "train_study",
]  # fmt: skip

Variants = Mapping[str, Sequence[str]]
"""Changes of the recipe by the name of the variant."""


def first_layers(operator: str, count: int = 1) -> tuple[str, ...]:
    """Return the change that uses an operator in the first layers and symmetric attention in the others."""
    layers = ", ".join(f"{number} = {{{operator}}}" for number in range(count))
    return (f'model.attention={{operator = "symmetric", layers = {{{layers}}}}}',)


SOFTMAX: Variants = {"softmax": ('model.attention="softmax"',)}
SYMMETRIC: Variants = {"symmetric": ('model.attention="symmetric"',)}
CLAMPED: Variants = {"clamped keys": first_layers('operator = "clamped", strength = 4.0')}
RPC_FIRST: Variants = {"RPC, layer 0": first_layers('operator = "rpc", iterations = 4, strength = 4.0')}
RPC_ALL: Variants = {"RPC, all layers": ('model.attention={operator = "rpc", iterations = 2, strength = 3.0}',)}
ASYMMETRIC_RPC: Variants = {
    "asymmetric RPC, layer 0": (
        'model.attention={operator = "softmax", layers = {0 = {operator = "rpc", iterations = 4, strength = 4.0, '
        'queries = "given"}}}',
    )
}
SCALED: Variants = {"scaled": ('model.attention="scaled"',)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The recipes of the two scales, the variants, and the number of seeds of each.

    paper_variants: changes that replace those of a variant at the scale of the paper
    """

    small: str
    paper: str
    variants: Variants
    seeds: int = 3
    paper_variants: Variants = field(default_factory=dict)

    def recipe(self, request: Request, variant: str, seed: int) -> RecipeFile:
        """Return the recipe of a variant at the scale of the request."""
        replaced = self.paper_variants if request.scale == "paper" else {}
        changes = [*replaced.get(variant, self.variants[variant]), f"training.seed={seed}"]
        file = read_recipe_file(self.paper if request.scale == "paper" else self.small, changes)
        if request.epochs is None:
            return file
        warmup = min(file.recipe.warmup, request.epochs / 4)
        return dataclasses.replace(file, recipe=dataclasses.replace(file.recipe, epochs=request.epochs, warmup=warmup))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One trained variant: its log, its number of parameters, and the folder of its model."""

    variant: str
    seed: int
    folder: Path
    log: tuple[Mapping[str, Any], ...]
    parameters: int

    def model(self) -> nn.Module:
        """Return the trained model."""
        return load_native(self.folder / MODEL_FOLDER).eval()

    def initial_model(self) -> nn.Module:
        """Return the model as it was before training."""
        trained = self.model()
        initial: nn.Module = type(trained)(trained.config, generator=torch.Generator().manual_seed(self.seed))
        return initial.eval()


def train_study(
    study: Study, request: Request, *, folder: Path | None = None, after_epoch: Evaluate | None = None
) -> list[StudyRun]:
    """Train every variant from every seed; finished runs are not repeated. A run that diverges is left out, and named.

    folder: of the runs; by default one that all studies of the recipe share
    after_epoch: measures the model after every epoch, for the log; runs with other measures need a folder of their own

    All variants of one seed come before the next seed, so that an interrupted study can be compared so far.
    """
    cells = [(variant, seed) for seed in request.seed_list(study.seeds) for variant in study.variants]
    runs = []
    for number, (variant, seed) in enumerate(cells):
        file = study.recipe(request, variant, seed)
        data = _data_of(request, file)

        def progress(
            step: int, steps: int, loss: float, number: int = number, cell: str = f"{variant}, seed {seed}"
        ) -> None:
            request.progress(cell, round(100 * (number + step / steps)), 100 * len(cells))

        name = "-".join(variant.replace(",", "").lower().split())
        shared = request.out / SHARED_RUNS / f"{file.name}-{file.recipe.epochs}-epochs"
        run_folder = (folder or shared) / f"{name}-{seed}"
        run_folder.mkdir(parents=True, exist_ok=True)
        try:
            trained = run_recipe(
                file, data, run_folder, after_epoch=after_epoch, progress=progress, notice=request.notice
            )
        except DivergedError as error:
            request.notice(f"{variant}, seed {seed}: {error}")
            continue
        runs.append(
            StudyRun(variant=variant, seed=seed, folder=run_folder, log=trained.log, parameters=trained.parameters)
        )
    return runs


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


def chance(runs: Sequence[StudyRun], measure: str = "accuracy") -> Floor:
    """Return the floor of an accuracy: that of classes drawn at random."""
    classes: int = runs[0].model().config.classes  # type: ignore[union-attr, assignment]
    return Floor(measure=measure, value=1 / classes, name="chance")


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
