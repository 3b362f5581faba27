"""Whether heads come nearer to max-margin heads while a real model is trained, as the theory has it for a simple one.

The theory predicts for descent without weight decay, once attention is saturated: |W| grows without bound, and with it
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

from clearhead.audit.findings import Finding
from clearhead.capturing import capture
from clearhead.experiments.estimates import estimate
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.images import ImageSet, digits
from clearhead.experiments.models.vision import DIGITS_PLAN, vit_config
from clearhead.experiments.seed_runs import PICTURE, command_of, seeds_of, write_page
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals, plus_minus
from clearhead.heads import Heads
from clearhead.models.vit import VisionTransformer, config_as_json
from clearhead.report.line_chart import Line, Panel, picture
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import Sampling
from clearhead.theories.max_margin.on_heads.measurement import MaxMarginClaims
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from clearhead.theories.theory import Claim
from clearhead.training.evaluation import as_pixels, measure_accuracy
from clearhead.training.loop import read_log, train

__all__ = ["TRAINING"]

NAME = "svm/training"
DECAYS = {"decay .05": 0.05, "no decay": 0.0}
EPOCHS, SHOWN = 60, (1, 5, 12, 25, 60)
MEASURED = (1, 2, 3, 5, 8, 12, 18, 25, 35, 45, 60)
"""After so many epochs, and after the last, the heads are measured."""
IMAGES = 36
SAMPLING = Sampling(inputs=6, queries=3, tokens=17, random=8, turned=0, mistaken=0)
MEASURES: dict[str, Claim] = {
    "saturated": c.SATURATION,
    "ratio": c.RATIO,
    "low ratio": c.LOW_RATIO,
    "cosine": c.COSINE,
    "held out": c.HELD_OUT,
}


def heads_now(model: nn.Module, pixels: Tensor, *, seed: int) -> dict[str, Any]:
    """Every head's numbers beside those of random heads, and the norm of its W, in the order of layers and heads."""
    measurement = MaxMarginClaims(seed, sampling=SAMPLING)
    norms: dict[int, list[float]] = {}

    def keep(heads: Heads) -> None:
        measurement.observe(heads)
        norms[heads.layer] = space_of(heads).own([(0, 0)]).norms.tolist()

    training = model.training
    model.eval()
    with torch.no_grad(), capture(model, keep=keep):
        model(pixels)
    model.train(training)
    found = measurement.findings()
    numbers: dict[str, Any] = {"norm": [norm for layer in sorted(norms) for norm in norms[layer]]}
    for name, claim in MEASURES.items():
        of_claim = [finding for finding in found if finding.claim == claim]
        numbers[name] = [finding.value for finding in of_claim]
        numbers[f"random {name}"] = [_beside(finding, c.RANDOM_HEAD.name) for finding in of_claim]
        numbers[f"Hebbian {name}"] = [_beside(finding, c.HEBBIAN.name) for finding in of_claim]
    return numbers


def _beside(finding: Finding, control: str) -> float | None:
    return next((chance.value for chance in finding.controls if chance.control == control), None)


def _trained(images: ImageSet, decay: float, seed: int, request: Request, folder: Path, name: str) -> list[Any]:
    """The log of one run, with the heads at the epochs that are measured."""
    epochs, plain = request.epochs or EPOCHS, DIGITS_PLAN.recipe
    warmup = min(plain.warmup, epochs / 4)
    recipe = dataclasses.replace(plain, epochs=epochs, warmup=warmup, weight_decay=decay, seed=seed)
    config = vit_config(images, DIGITS_PLAN)
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(seed))
    pixels = as_pixels(images.test_images[:IMAGES])

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        accuracy = measure_accuracy(trained, images.test_images, images.test_labels).value
        now = len(read_log(folder)) + 1
        measured = heads_now(trained, pixels, seed=seed) if now in MEASURED or now == epochs else {}
        return {"accuracy": accuracy, **measured}

    log = train(
        model,
        images.train_images,
        images.train_labels,
        recipe=recipe,
        folder=folder,
        evaluate=evaluate,
        augment=DIGITS_PLAN.augment,
        describe={"model": config_as_json(config), "data": images.name, "heads": dataclasses.asdict(SAMPLING)},
        progress=lambda step, steps, loss: request.tell(f"{name}, seed {seed}: loss {loss:.3f}", step, steps),
    )
    return [entry for entry in log if "ratio" in entry]


def _run(request: Request, folder: Path) -> Outcome:
    images, seeds = digits(), seeds_of(request, 3)
    logs = {
        name: [_trained(images, decay, seed, request, folder / f"decay{decay}-{seed}", name) for seed in seeds]
        for name, decay in DECAYS.items()
    }
    table, trends = _table(logs), _trends(logs)
    command = command_of(NAME, request)
    setting = (
        f"A vision transformer of {DIGITS_PLAN.layers} x {DIGITS_PLAN.heads} heads on scikit-learn's digits, AdamW, "
        f"{len(seeds)} seeds; at some epochs its heads on {IMAGES} test images. Medians over all heads and seeds; a "
        "random head stands beside every number. The theory predicts rank correlations of one without decay."
    )
    page = write_page(
        folder,
        title="Heads and their margins during training",
        command=command,
        setting=setting,
        tables=[
            ("By epoch", as_markdown(table)),
            ("Rank correlation with |W| over the epochs, mean over heads and seeds", as_markdown(trends)),
        ],
    )
    write_text(folder / PICTURE, _picture(logs))
    last = logs["no decay"]
    ratio, saturated = _median(last, -1, "ratio"), _median(last, -1, "saturated")
    return Outcome(
        headline=f"without decay, margin ratio {decimals(ratio)}, {decimals(saturated)} of queries saturated",
        tables=as_columns(table),
        remarks=(
            "Medians over heads and seeds: share of saturated queries, margin ratio and cosine to the Frobenius SVM, "
            "and the same of random heads.",
            *(
                f"{name}: rank correlation with |W| of the ratio {ratio}, of the cosine {cosine}."
                for name, ratio, cosine in zip(*(field.cells for field in trends), strict=True)
            ),
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "logs": logs},
    )


def _median(runs: Sequence[Sequence[Any]], place: int, measure: str) -> float | None:
    known = [value for log in runs for value in log[place][measure] if value is not None and np.isfinite(value)]
    return float(np.median(known)) if known else None


def _table(logs: Mapping[str, Sequence[Any]]) -> list[Field]:
    rows = [
        (name, place, runs)
        for name, runs in logs.items()
        for place, entry in enumerate(runs[0])
        if entry["epoch"] in SHOWN or place == len(runs[0]) - 1
    ]

    def cells(measure: str) -> list[str]:
        return [decimals(_median(runs, place, measure)) for _, place, runs in rows]

    accuracy = [estimate([log[place]["accuracy"] for log in runs]) for _, place, runs in rows]
    return [
        Field(title="training", cells=[name for name, _, _ in rows], words=True),
        Field(title="epoch", cells=[str(runs[0][place]["epoch"]) for _, place, runs in rows]),
        Field(title="test accuracy", short="accuracy", cells=[plus_minus(one) for one in accuracy], rank=3),
        Field(title="|W|", cells=[f"{_median(runs, place, 'norm'):.2f}" for _, place, runs in rows], rank=1),
        Field(title="saturated queries", short="saturated", cells=cells("saturated")),
        Field(title="margin ratio", short="ratio", cells=cells("ratio")),
        Field(title="of random heads", short="random", cells=cells("random ratio"), rank=1),
        Field(title="cosine, Frobenius", short="cosine", cells=cells("cosine")),
        Field(title="of random heads", short="random", cells=cells("random cosine"), rank=1),
        Field(title="cosine to the Hebbian matrix", short="Hebbian", cells=cells("Hebbian cosine"), rank=2),
        Field(title="held-out selection", short="held out", cells=cells("held out"), rank=2),
        Field(title="by the Hebbian matrix", short="Hebbian", cells=cells("Hebbian held out"), rank=3),
    ]


def _trends(logs: Mapping[str, Sequence[Any]]) -> list[Field]:
    """Spearman's correlation over epochs with the norm of W, for every head of every run."""

    def cell(runs: Sequence[Sequence[Any]], measure: str) -> str:
        each = []
        for log in runs:
            norms, values = (np.array([entry[name] for entry in log], dtype=np.float64) for name in ("norm", measure))
            each += [float(stats.spearmanr(n, v).statistic) for n, v in zip(norms.T, values.T, strict=True)]
        return plus_minus(estimate([value for value in each if np.isfinite(value)]))

    return [
        Field(title="training", cells=list(logs), words=True),
        Field(title="margin ratio", cells=[cell(runs, "ratio") for runs in logs.values()]),
        Field(title="cosine, Frobenius", cells=[cell(runs, "cosine") for runs in logs.values()]),
    ]


def _picture(logs: Mapping[str, Sequence[Any]]) -> str:
    panels = []
    for title, measure in (("Margin ratio", "ratio"), ("Cosine to the Frobenius SVM", "cosine")):
        lines = []
        for place, (name, runs) in enumerate(logs.items()):
            epochs = [entry["epoch"] for entry in runs[0]]
            for colour, kind in ((place, measure), (place + 2, f"random {measure}")):
                values = [_median(runs, place, kind) for place in range(len(epochs))]
                beside = ", random heads" if kind != measure else ""
                lines.append(
                    Line(
                        name=f"{name}{beside}",
                        x=epochs,
                        y=[np.nan if value is None else value for value in values],
                        colour=colour,
                    )
                )
        panels.append(Panel(title=title, x_label="epoch", y_label="median head", lines=lines, x_log=True))
    return picture(panels, title="Margins of the heads of a vision transformer, by the epoch of training")


TRAINING = Experiment(
    name=NAME,
    reproduces="whether heads of a real model come nearer to max-margin heads in training (Tarzanagh et al. 2023)",
    cost="10 min",
    run=_run,
    options=frozenset({"seeds", "epochs"}),
)
