"""CRATE and a vision transformer of about the same size: accuracy, and the coding rate and sparsity of their layers.

The papers plot, layer by layer, the rate after attention and the share of nonzero entries after the sparse step, and
both fall with depth. Here both are also measured for the same models before training (the baseline).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead.audit.run import audit
from clearhead.report.json_file import audit_as_json
from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.report.tables import Field, Table, decimals, mean_of, over_runs, plus_minus
from clearhead.storage import tensor_fingerprint
from clearhead_lab.data.image_sets import ImageSet, digits
from clearhead_lab.experiments.cache import code_fingerprint, remembered
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN, differences
from clearhead_lab.experiments.experiment import Experiment, Figure, Report, Request
from clearhead_lab.experiments.models.vision import fashion_mnist
from clearhead_lab.experiments.study import Study, StudyRun, Variants, in_memory, train_study, untrained
from clearhead_lab.models.crate import Form
from clearhead_lab.models.native import draw_baseline
from clearhead_lab.training.evaluation import as_pixels
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import DataSettings

VIT = "ViT"


def variants(*forms: Form, crate_width: int, width: int, mlp_width: int) -> Variants:
    """Return CRATE in every form, and a vision transformer of about the same size, which is less wide."""
    crate = {f"CRATE, {form}": {"kind": "crate", "width": crate_width, "form": str(form)} for form in forms}
    return {**crate, VIT: {"kind": "vision-transformer", "width": width, "mlp_width": mlp_width}}


FASHION_STUDY = Study(
    small=in_memory(Recipe(epochs=3, learning_rate=1e-3, label_smoothing=0.1), patch_size=4, layers=6, heads=8),
    variants=variants(Form.RELEASED, crate_width=160, width=96, mlp_width=208),
)
DIGITS_STUDY = Study(
    small=in_memory(
        Recipe(epochs=40, batch_size=64, learning_rate=2e-3, warmup=3.0), data=DataSettings(shift=1),
        patch_size=2, layers=4, heads=4,
    ),
    variants=variants(Form.RELEASED, Form.TIED, Form.NEGATED, Form.PAPER, crate_width=52, width=32, mlp_width=64),
)  # fmt: skip

IMAGES, BATCH = 100, 25
BASELINES, SPACING = 5, 1000
"""Draws of every model before training, the first as its training began, and the distance of their seeds."""
SHARE = "share of entries"
"""The quantity that is plotted from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The trained models, and the audit of the layers of each.

    layers: by model, one per seed: curves by layer and claims
    inputs: the number of test images of the audit
    """

    images: ImageSet
    study: Study
    runs: Sequence[StudyRun]
    layers: Mapping[str, Sequence[Mapping[str, Any]]]
    inputs: int


def measure(images: ImageSet, study: Study, request: Request, folder: Path) -> Results:
    """Train every model from every seed, and audit its layers together with the untrained model."""
    runs = train_study(study, request, data=images, folder=folder)
    inputs = min(request.inputs or IMAGES, len(images.test_images))
    layers: dict[str, list[Mapping[str, Any]]] = {}
    for number, run in enumerate(runs):
        request.progress(f"{run.variant}, seed {run.seed}: layers", number, len(runs))
        tensors = (*run.model().state_dict().values(), images.test_images[:inputs])
        # An audit uses most of the package, so its result depends on all code.
        key = {"code": code_fingerprint(), "tensors": tensor_fingerprint(tensors), "torch": torch.__version__}
        path = run.folder / "layers.json"
        audit_run = functools.partial(audit_layers, run, images, inputs=inputs)
        audited = remembered(path, key, audit_run, notice=request.notice, kind=dict[str, Any])
        layers.setdefault(run.variant, []).append(audited)
    return Results(images=images, study=study, runs=runs, layers=layers, inputs=inputs)


def audit_layers(run: StudyRun, images: ImageSet, *, inputs: int) -> dict[str, Any]:
    """Return the coding-rate audit of one model with its baseline: curves by layer, and medians over heads."""
    model = run.model()
    batches = list(torch.split(as_pixels(images.test_images[:inputs]), BATCH))
    baselines = (draw_baseline(model, run.seed + SPACING * draw) for draw in range(BASELINES))
    record = audit(
        model, batches, theories=["coding-rate"], claims="all", baseline=baselines, seed=run.seed, name=run.variant
    )
    stored = audit_as_json(record)
    return {"curves": stored["curves"], "claims": stored["summaries"]}


def report(results: Results, request: Request) -> Report:
    """Tabulate accuracy, the claims about layers, and every curve."""
    names, study, images = list(results.layers), results.study, results.images
    file = study.recipe(request, names[0], request.seed)
    accuracy = {name: {run.seed: run.accuracy.value for run in results.runs if run.variant == name} for name in names}
    failed = untrained(results.runs, images.test_labels)
    pairs = [(name, names[-1]) for name in names[:-1] if not {name, names[-1]} & {*failed}]
    compared = differences({"accuracy": accuracy}, pairs)
    found = {name: plus_minus(over_runs(list(accuracy[name].values()))) for name in names}
    return Report(
        headline="; ".join(f"{name} {DID_NOT_TRAIN if name in failed else text}" for name, text in found.items()),
        setting=(
            f"{images.name}: {len(images.train_images):,} training and {len(images.test_images):,} test images, "
            f"{file.recipe.epochs} epochs, {file.model['layers']} layers of {file.model['heads']} heads, "
            f"{len(request.seed_list(study.seeds))} seeds. Intervals are 95 % Student intervals over seeds. Layers are "
            f"measured on {results.inputs} test images; values of claims are medians over heads, means over seeds."
        ),
        sections=[
            ("Accuracy", _accuracy_table(results, accuracy)),
            ("Claims about the layers, with the untrained model as control", _claim_table(results.layers)),
            *_layer_tables(results.layers),
        ],
        remarks=(
            *(f"{d.variant} minus {d.baseline}: {plus_minus(d.estimate)}, {d.words}" for d in compared),
            *(f"{name}: {DID_NOT_TRAIN}" for name in failed),
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"accuracy": {name: {str(s): a for s, a in by_seed.items()} for name, by_seed in accuracy.items()}},
    )


def _accuracy_table(results: Results, accuracy: Mapping[str, Mapping[int, float]]) -> Table:
    parameters = {run.variant: run.parameters for run in results.runs}
    values = [list(by_seed.values()) for by_seed in accuracy.values()]
    return [
        Field(title="model", cells=list(accuracy), text=True),
        Field(title="parameters", cells=[f"{parameters[name]:,}" for name in accuracy], rank=1),
        Field(title="test accuracy", short="accuracy", cells=[plus_minus(over_runs(each)) for each in values]),
        Field(title="by seed", cells=["  ".join(decimals(value, 4) for value in each) for each in values], rank=2),
    ]


def _claim_table(layers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """A row for each claim of each model, over its seeds."""
    rows = [
        (name, [run["claims"][number] for run in runs])
        for name, runs in layers.items()
        for number in range(len(runs[0]["claims"]))
    ]

    def controls(claims: Sequence[Mapping[str, Any]]) -> str:
        each = [claim["controls"] for claim in claims]
        return "; ".join(f"{name} {mean_of(over_runs([c.get(name) for c in each]))}" for name in each[0])

    def verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
        counts: dict[str, int] = {}
        for claim in claims:
            for verdict, count in claim["verdicts"].items():
                counts[verdict] = counts.get(verdict, 0) + count
        return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1]))

    return [
        Field(title="model", cells=[name for name, _ in rows], text=True),
        Field(title="statistic", cells=[claims[0]["statistic"] for _, claims in rows], text=True),
        Field(title="value", cells=[plus_minus(over_runs([c["median"] for c in claims])) for _, claims in rows]),
        Field(title="controls", cells=[controls(claims) for _, claims in rows], text=True),
        Field(title="verdicts, heads of all seeds", cells=[verdicts(claims) for _, claims in rows], text=True),
    ]


def _layer_tables(layers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, Table]]:
    """Return a table per quantity: a row for each line of each model, a column for each layer."""
    tables: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for name, runs in layers.items():
        for number, curve in enumerate(runs[0]["curves"]):
            rows = tables.setdefault(f"{curve['title']}, by layer ({curve['quantity']})", [])
            for index, line in enumerate(curve["lines"]):
                values = _values(runs, number, index)
                rows.append((f"{name}: {line['name']}", [_three_digits(of_layer) for of_layer in values]))
    return [
        (
            title,
            [
                Field(title="line", cells=[name for name, _ in rows], text=True),
                *(
                    Field(title=str(i), cells=[cells[i] if i < len(cells) else "-" for _, cells in rows])
                    for i in range(max(len(cells) for _, cells in rows))
                ),
            ],
        )
        for title, rows in tables.items()
    ]


def _values(runs: Sequence[Mapping[str, Any]], curve: int, line: int) -> list[tuple[float | None, ...]]:
    """Return the values of a line over the runs, by layer."""
    return list(zip(*(run["curves"][curve]["lines"][line]["values"] for run in runs), strict=True))


def _three_digits(values: Sequence[float | None]) -> str:
    """Format a mean over seeds with half the width of its interval; rates are in the hundreds, shares below one."""
    mean = over_runs(values)
    if mean is None:
        return "-"
    half = "" if mean.interval is None else f" ± {(mean.interval.high - mean.interval.low) / 2:.2g}"
    return f"{mean.mean:.3g}{half}"


def draw(results: Results) -> Figure:
    """Plot a row of panels for each quantity and a column for each model; means over seeds with their intervals."""
    curves = [
        (title, name, runs, next(i for i, curve in enumerate(runs[0]["curves"]) if curve["title"] == title))
        for title in dict.fromkeys(c["title"] for runs in results.layers.values() for c in runs[0]["curves"])
        for name, runs in results.layers.items()
        if any(curve["title"] == title for curve in runs[0]["curves"])
    ]
    figure, panels = make_panels(
        len(curves), title="Coding rate and sparsity by layer, trained and before training", columns=2
    )
    for axes, (title, name, runs, number) in zip(panels, curves, strict=True):
        curve = runs[0]["curves"][number]
        for colour, line in enumerate(curve["lines"]):
            plot_mean(axes, curve["layers"], _values(runs, number, colour), label=line["name"], colour=colour)
        y_range = (-0.02, 1.02) if curve["quantity"] == SHARE else None
        finish_panel(axes, title=f"{name}: {title}", x="layer", y=curve["quantity"], y_range=y_range)
    return figure


def _experiment(
    name: str, images: Callable[[Request], ImageSet], study: Study, *, reproduces: str, cost: str, options: set[str]
) -> Experiment:
    return Experiment(
        name=name,
        title=f"CRATE compared with a vision transformer: {name.removeprefix('crate/')}",
        reproduces=reproduces,
        cost=cost,
        measure=lambda request, folder: measure(images(request), study, request, folder),
        report=report,
        options=frozenset({"epochs", "seeds", "inputs", *options}),
    )


CRATE_FASHION = _experiment(
    "crate/fashion-mnist",
    lambda request: fashion_mnist(request.data),
    FASHION_STUDY,
    reproduces="CRATE and a ViT of about the same size, with rate and sparsity by layer (Yu et al. 2023, 2306.01129)",
    cost="1.5 h",
    options={"data"},
)
CRATE_DIGITS = _experiment(
    "crate/digits",
    lambda request: digits(),
    DIGITS_STUDY,
    reproduces="the same on scikit-learn's digits, with four forms of CRATE: released, tied, negated, paper",
    cost="10 min",
    options=set(),
)
