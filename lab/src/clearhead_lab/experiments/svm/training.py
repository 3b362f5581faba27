"""Do heads approach max-margin heads while a real model is trained, as the theory says of a simple one?

For descent without weight decay the theory predicts that, once attention is saturated, |W| grows without bound, and
the margin ratio and the cosine to the SVM rise to one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.engine import feed
from clearhead.audit.findings import Finding
from clearhead.audit.part import Pass
from clearhead.audit.results import findings_of
from clearhead.heads import Heads
from clearhead.report.plots import finish_panel, make_panels, plot_band
from clearhead.report.tables import Field, Table, decimals, over_runs, plus_minus
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin import make_theory
from clearhead.theories.max_margin.on_heads.choices import Sampling
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from clearhead.theories.theory import Claim
from clearhead_lab.data.image_sets import ImageSet, digits
from clearhead_lab.experiments.experiment import Experiment, Figure, Report, Request
from clearhead_lab.experiments.models.vision import DIGITS_STUDY
from clearhead_lab.experiments.study import train_run
from clearhead_lab.training.evaluation import as_pixels
from clearhead_lab.training.loop import read_log

DECAYS = {"decay .05": 0.05, "no decay": 0.0}
SHOWN = (1, 5, 12, 25, 60)
MEASURED = (1, 2, 3, 5, 8, 12, 18, 25, 35, 45, 60)
"""The epochs after which the heads are measured; the last epoch always is."""
IMAGES = 36
SAMPLING = Sampling(inputs=6, queries=3, tokens=17, random=8, rotated=0, replacements=0)
MEASURES: dict[str, Claim] = {
    "saturated": c.SATURATION,
    "ratio": c.RATIO,
    "low ratio": c.LOW_RATIO,
    "cosine": c.COSINE,
    "held out": c.HELD_OUT,
}

Logs = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""The log of every seed, by the weight decay."""


def measure(request: Request, folder: Path) -> Logs:
    """Train with and without weight decay from every seed; return the log entries that measured the heads."""
    images = digits()
    return {
        name: [
            _train(images, decay, seed, request, folder / f"decay{decay}-{seed}", name) for seed in request.seed_list(3)
        ]
        for name, decay in DECAYS.items()
    }


def _train(
    images: ImageSet, decay: float, seed: int, request: Request, folder: Path, name: str
) -> list[Mapping[str, Any]]:
    file = DIGITS_STUDY.recipe(request, "softmax", seed)
    recipe = dataclasses.replace(file.recipe, weight_decay=decay)
    pixels = as_pixels(images.test_images[:IMAGES])

    def measure_epoch(model: nn.Module) -> Mapping[str, Any]:
        epoch = len(read_log(folder)) + 1
        return measure_heads(model, pixels, seed=seed) if epoch in MEASURED or epoch == recipe.epochs else {}

    run = train_run(
        dataclasses.replace(file, recipe=recipe),
        images,
        folder,
        request,
        variant=name,
        after_epoch=measure_epoch,
        progress=lambda step, steps, loss: request.progress(f"{name}, seed {seed}: loss {loss:.3f}", step, steps),
    )
    return [entry for entry in run.log if "ratio" in entry]


def measure_heads(model: nn.Module, pixels: Tensor, *, seed: int) -> dict[str, Any]:
    """Return the statistics of every head, those of random heads, and the norm of W, by layer and head."""
    theory = make_theory(sampling=SAMPLING, everywhere=True)
    pass_ = Pass(theories=[theory], seed=seed, claims=frozenset(MEASURES.values()))
    norms: dict[int, list[float]] = {}

    def observe(heads: Heads) -> None:
        feed(pass_, heads)
        norms[heads.layer] = space_of(heads).norms().tolist()

    training = model.training
    model.eval()
    with torch.no_grad(), capture(model, keep=observe):
        model(pixels)
    model.train(training)
    findings = findings_of(pass_, theory)
    numbers: dict[str, Any] = {"norm": [norm for layer in sorted(norms) for norm in norms[layer]]}
    for name, claim in MEASURES.items():
        of_claim = [finding for finding in findings if finding.claim == claim]
        numbers[name] = [finding.value for finding in of_claim]
        numbers[f"random {name}"] = [_control(finding, c.RANDOM_HEAD.name) for finding in of_claim]
        numbers[f"Hebbian {name}"] = [_control(finding, c.HEBBIAN.name) for finding in of_claim]
    return numbers


def _control(finding: Finding, name: str) -> float | None:
    return next((control.value for control in finding.controls if control.name == name), None)


def report(logs: Logs, request: Request) -> Report:
    """Tabulate the margins of the heads by epoch, and their correlation with |W|."""
    seeds = request.seed_list(3)
    trends, model = _trend_table(logs), DIGITS_STUDY.recipe(request, "softmax", request.seed).model
    last = logs["no decay"]
    return Report(
        headline=f"without decay, margin ratio {decimals(_median(last, -1, 'ratio'))}, "
        f"{decimals(_median(last, -1, 'saturated'))} of queries saturated",
        setting=(
            f"A vision transformer of {model['layers']} x {model['heads']} heads on scikit-learn's digits, "
            f"AdamW, {len(seeds)} seeds; its heads at some epochs on {IMAGES} test images. Medians over all heads and "
            "seeds, with those of random heads as a control. The theory predicts rank correlations of one without "
            "decay."
        ),
        sections=[
            ("By epoch", _table(logs)),
            ("Rank correlation with |W| over the epochs, mean over heads and seeds", trends),
        ],
        remarks=(
            "Medians over heads and seeds: share of saturated queries, margin ratio and cosine to the Frobenius SVM, "
            "and those of random heads.",
            *(
                f"{name}: rank correlation with |W| of the ratio {ratio}, of the cosine {cosine}."
                for name, ratio, cosine in zip(*(field.cells for field in trends), strict=True)
            ),
        ),
        figures={"picture.svg": lambda: draw(logs)},
        facts={"seeds": seeds, "logs": dict(logs)},
    )


def _median(runs: Sequence[Sequence[Mapping[str, Any]]], entry: int, name: str) -> float | None:
    known = [value for log in runs for value in log[entry][name] if value is not None and np.isfinite(value)]
    return float(np.median(known)) if known else None


def _table(logs: Logs) -> Table:
    rows = [
        (name, i, runs)
        for name, runs in logs.items()
        for i, entry in enumerate(runs[0])
        if entry["epoch"] in SHOWN or i == len(runs[0]) - 1
    ]

    def cells(measure: str) -> list[str]:
        return [decimals(_median(runs, i, measure)) for _, i, runs in rows]

    accuracy = [over_runs([log[i]["accuracy"] for log in runs]) for _, i, runs in rows]
    return [
        Field(title="training", cells=[name for name, _, _ in rows], text=True),
        Field(title="epoch", cells=[str(runs[0][i]["epoch"]) for _, i, runs in rows]),
        Field(title="test accuracy", short="accuracy", cells=[plus_minus(mean) for mean in accuracy], rank=3),
        Field(title="|W|", cells=[f"{_median(runs, i, 'norm'):.2f}" for _, i, runs in rows], rank=1),
        Field(title="saturated queries", short="saturated", cells=cells("saturated")),
        Field(title="margin ratio", short="ratio", cells=cells("ratio")),
        Field(title="of random heads", short="random", cells=cells("random ratio"), rank=1),
        Field(title="cosine, Frobenius", short="cosine", cells=cells("cosine")),
        Field(title="of random heads", short="random", cells=cells("random cosine"), rank=1),
        Field(title="cosine to the Hebbian matrix", short="Hebbian", cells=cells("Hebbian cosine"), rank=2),
        Field(title="held-out selection", short="held out", cells=cells("held out"), rank=2),
        Field(title="by the Hebbian matrix", short="Hebbian", cells=cells("Hebbian held out"), rank=3),
    ]


def _trend_table(logs: Logs) -> Table:
    """Spearman correlations over epochs with the norm of W, for every head of every run."""

    def cell(runs: Sequence[Sequence[Mapping[str, Any]]], measure: str) -> str:
        correlations: list[float] = []
        for log in runs:
            norms, values = (np.array([entry[name] for entry in log], dtype=np.float64) for name in ("norm", measure))
            correlations += [float(stats.spearmanr(n, v).statistic) for n, v in zip(norms.T, values.T, strict=True)]
        return plus_minus(over_runs([value for value in correlations if np.isfinite(value)]))

    return [
        Field(title="training", cells=list(logs), text=True),
        Field(title="margin ratio", cells=[cell(runs, "ratio") for runs in logs.values()]),
        Field(title="cosine, Frobenius", cells=[cell(runs, "cosine") for runs in logs.values()]),
    ]


def draw(logs: Logs) -> Figure:
    """Plot the median margin ratio and cosine by epoch, with those of random heads."""
    measures = {"ratio": "Margin ratio", "cosine": "Cosine to the Frobenius SVM"}
    figure, panels = make_panels(2, title="Margins of the heads of a vision transformer, by the epoch of training")
    for axes, (measure, title) in zip(panels, measures.items(), strict=True):
        for number, (name, runs) in enumerate(logs.items()):
            epochs = [entry["epoch"] for entry in runs[0]]
            for colour, key, label in (
                (number, measure, name),
                (number + 2, f"random {measure}", f"{name}, random heads"),
            ):
                medians = [_median(runs, i, key) for i in range(len(epochs))]
                values = [np.nan if value is None else value for value in medians]
                plot_band(axes, epochs, values, (), (), label=label, colour=colour)
        finish_panel(axes, title=title, x="epoch", y="median head", x_log=True)
    return figure


TRAINING = Experiment(
    name="svm/training",
    title="Heads and their margins during training",
    reproduces="do heads of a real model approach max-margin heads in training? (Tarzanagh et al. 2023)",
    cost="10 min",
    measure=measure,
    report=report,
    options=frozenset({"seeds", "epochs"}),
)
