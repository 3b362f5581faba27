"""CRATE beside a vision transformer of like size: accuracy, and what their layers do to the rate and to sparsity.

The papers draw, layer by layer, the rate after attention and the share of entries that are not zero after the sparse
step, both of which fall with depth. Here both are drawn for the same model before training too, and so for the vision
transformer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.audit.judging import Summary, summarise
from clearhead.audit.run import audit
from clearhead.experiments.cache import kept
from clearhead.experiments.crate.runs import DIGITS_PLAN, FASHION_PLAN, Plan, Trained, train_all
from clearhead.experiments.estimates import differences
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.fingerprint import of_tensors
from clearhead.experiments.images import ImageSet, digits
from clearhead.experiments.models.vision import fashion_mnist
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals, mean_of, over_runs, plus_minus
from clearhead.models.native import untrained
from clearhead.report.chart_axis import axis_over
from clearhead.report.line_chart import Panel, picture
from clearhead.training.evaluation import as_pixels

__all__ = ["CRATE_DIGITS", "CRATE_FASHION"]

IMAGES, BATCH = 100, 25
TWINS, SPACING = 5, 1000
"""Draws of every model before training, the first as its training began, and how far apart their seeds are."""
MEASURED = "layers.json"
SHARE = "share of entries"
"""A quantity from 0 to 1, which is drawn so."""
PANEL_WIDTH = 520.0


def layers_of(run: Trained, images: ImageSet, *, count: int) -> dict[str, Any]:
    """What the audit says of one model beside itself before training: curves by layer, and medians over heads."""
    model = run.model()
    batches = list(torch.split(as_pixels(images.test_images[:count]), BATCH))
    twins = (untrained(model, run.seed + SPACING * place) for place in range(TWINS))
    record = audit(model, batches, theories=["coding-rate"], untrained=twins, seed=run.seed, name=run.name)
    return {
        "curves": [_curve(dataclasses.asdict(curve)) for curve in record.curves],
        "claims": [_claim(summary) for summary in summarise(record.findings)],
    }


def _curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    lines = {line["name"]: [_known(value) for value in line["values"]] for line in curve["lines"]}
    return {"title": curve["title"], "quantity": curve["quantity"], "layers": list(curve["layers"]), "lines": lines}


def _claim(summary: Summary) -> dict[str, Any]:
    return {
        "statistic": summary.claim.statistic,
        "median": _known(summary.median),
        "controls": {name: _known(value) for name, value in summary.controls.items()},
        "verdicts": {str(verdict): count for verdict, count in summary.verdicts.items()},
    }


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _measured(trained: Sequence[Trained], images: ImageSet, request: Request, *, count: int) -> list[dict[str, Any]]:
    """The layers of every model; what was measured by the same code on the same model is not measured again."""
    found = []
    for place, run in enumerate(trained):
        request.tell(f"{run.name}, seed {run.seed}: layers", place, len(trained))

        def make(*, count: int, seen: str, run: Trained = run) -> dict[str, Any]:
            return layers_of(run, images, count=count)

        seen = (*run.model().state_dict().values(), images.test_images[:count])
        settings = {"count": count, "seen": of_tensors(seen)}
        # On all of the package, for an audit uses most of it.
        found.append(kept(run.folder.parent / MEASURED, make, settings, rooms=("",)))
    return found


def _run(name: str, images: ImageSet, plan: Plan, request: Request, folder: Path) -> Outcome:
    trained = train_all(images, plan, request, folder)
    count = min(request.inputs or IMAGES, len(images.test_images))
    measured = _measured(trained, images, request, count=count)
    names = list(dict.fromkeys(run.name for run in trained))
    by_name = {
        each: [found for run, found in zip(trained, measured, strict=True) if run.name == each] for each in names
    }
    right = {each: {run.seed: run.accuracy for run in trained if run.name == each} for each in names}
    told = differences({"accuracy": right}, [(each, names[-1]) for each in names[:-1]])
    accuracy = _accuracy(trained, names)
    claims = _claims(by_name)
    command = command_of(name, request)
    setting = (
        f"{images.name}: {len(images.train_images):,} training and {len(images.test_images):,} test images, "
        f"{request.epochs or plan.recipe.epochs} epochs, {plan.layers} layers of {plan.heads} heads, "
        f"{len(seeds_of(request, plan.seeds))} seeds. Intervals are Student's over seeds. Layers are measured on "
        f"{count} test images; numbers of claims are medians over heads, means over seeds."
    )
    page = write_page(
        folder,
        title=f"CRATE beside a vision transformer: {images.name}",
        command=command,
        setting=setting,
        tables=[
            ("Accuracy", as_markdown(accuracy)),
            ("What the layers do, beside the same model before training", as_markdown(claims)),
            *_by_layer(by_name),
        ],
    )
    write_text(folder / PICTURE, _picture(by_name))
    return Outcome(
        headline="; ".join(f"{each} {plus_minus(over_runs(list(right[each].values())))}" for each in names),
        tables=as_columns(accuracy),
        remarks=tuple(f"{d.variant} less {d.beside}: {plus_minus(d.estimate)}, {d.verdict}" for d in told),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "accuracy": {k: {str(s): a for s, a in v.items()} for k, v in right.items()}},
    )


def _accuracy(trained: Sequence[Trained], names: Sequence[str]) -> list[Field]:
    of = {name: [run for run in trained if run.name == name] for name in names}
    return [
        Field(title="model", cells=list(names), words=True),
        Field(title="parameters", cells=[f"{of[name][0].parameters:,}" for name in names], rank=1),
        Field(title="test accuracy", short="accuracy", cells=[_spread([r.accuracy for r in of[n]]) for n in names]),
        Field(title="by seed", cells=["  ".join(decimals(r.accuracy, 4) for r in of[n]) for n in names], rank=2),
    ]


def _spread(values: Sequence[float | None]) -> str:
    return plus_minus(over_runs(list(values)))


def _claims(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Field]:
    rows = [
        (name, place, claim["statistic"])
        for name, runs in by_name.items()
        for place, claim in enumerate(runs[0]["claims"])
    ]

    def control(name: str, place: int) -> str:
        each = [run["claims"][place]["controls"] for run in by_name[name]]
        return "; ".join(f"{kind} {mean_of(over_runs([c.get(kind) for c in each]))}" for kind in each[0])

    def verdicts(name: str, place: int) -> str:
        counts: dict[str, int] = {}
        for run in by_name[name]:
            for verdict, count in run["claims"][place]["verdicts"].items():
                counts[verdict] = counts.get(verdict, 0) + count
        return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1]))

    return [
        Field(title="model", cells=[name for name, _, _ in rows], words=True),
        Field(title="statistic", cells=[statistic for _, _, statistic in rows], words=True),
        Field(
            title="value",
            cells=[_spread([run["claims"][place]["median"] for run in by_name[name]]) for name, place, _ in rows],
        ),
        Field(title="controls", cells=[control(name, place) for name, place, _ in rows], words=True),
        Field(title="verdicts, heads of all seeds", cells=[verdicts(name, p) for name, p, _ in rows], words=True),
    ]


def _by_layer(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """A table for every quantity: a row for each line of each model, a column for each layer."""
    tables: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for name, runs in by_name.items():
        for place, curve in enumerate(runs[0]["curves"]):
            rows = tables.setdefault(f"{curve['title']}, by layer ({curve['quantity']})", [])
            for line in curve["lines"]:
                each = [run["curves"][place]["lines"][line] for run in runs]
                rows.append((f"{name}: {line}", [_three_digits(values) for values in zip(*each, strict=True)]))
    return [(title, _layer_table(rows)) for title, rows in tables.items()]


def _layer_table(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    depth = max(len(cells) for _, cells in rows)
    names = Field(title="line", cells=[name for name, _ in rows], words=True)
    layers = [
        Field(title=str(i), cells=[cells[i] if i < len(cells) else "-" for _, cells in rows]) for i in range(depth)
    ]
    return as_markdown([names, *layers])


def _three_digits(values: Sequence[float | None]) -> str:
    """The mean over seeds and half the width of its interval; rates have hundreds, shares have decimals."""
    found = over_runs(list(values))
    if found is None:
        return "-"
    half = "" if found.interval is None else f" ± {(found.interval.high - found.interval.low) / 2:.2g}"
    return f"{found.mean:.3g}{half}"


def _picture(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A row for each quantity and a column for each model; means over seeds in bands of their intervals."""
    titles = [curve["title"] for runs in by_name.values() for curve in runs[0]["curves"]]
    panels = []
    for title in dict.fromkeys(titles):
        for name, runs in by_name.items():
            place = next((i for i, curve in enumerate(runs[0]["curves"]) if curve["title"] == title), None)
            if place is None:
                continue
            curve = runs[0]["curves"][place]
            lines = [
                line_over_runs(
                    line,
                    curve["layers"],
                    list(zip(*(run["curves"][place]["lines"][line] for run in runs), strict=True)),
                    colour=colour,
                )
                for colour, line in enumerate(curve["lines"])
            ]
            whole = axis_over((0.0, 1.0)) if curve["quantity"] == SHARE else None
            panels.append(
                Panel(title=f"{name}: {title}", x_label="layer", y_label=curve["quantity"], lines=lines, y_axis=whole)
            )
    return picture(
        panels, title="Coding rate and sparsity by layer, trained and before training", panel_width=PANEL_WIDTH
    )


CRATE_FASHION = Experiment(
    name="crate/fashion-mnist",
    reproduces="CRATE beside a ViT of like size, with rate and sparsity by layer (Yu et al. 2023, arXiv 2306.01129)",
    cost="1.5 h",
    run=lambda request, folder: _run("crate/fashion-mnist", fashion_mnist(request.data), FASHION_PLAN, request, folder),
    options=frozenset({"data", "epochs", "seeds", "inputs"}),
)
CRATE_DIGITS = Experiment(
    name="crate/digits",
    reproduces="the same on scikit-learn's digits, with the ways to compress that CRATE has: released, tied, negated",
    cost="10 min",
    run=lambda request, folder: _run("crate/digits", digits(), DIGITS_PLAN, request, folder),
    options=frozenset({"epochs", "seeds", "inputs"}),
)
