"""Training a prompt, which scores tokens by x.p, alone and together with the head (Tarzanagh et al., 2306.13596)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.report.plots import finish_panel, make_panels, plot_band, plot_plane
from clearhead.report.tables import Field, Table, decimals
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.svm import prompt_cases
from clearhead_lab.experiments.svm.descent.solutions import PACKAGES
from clearhead_lab.experiments.svm.prompt_cases import JOINT, PROMPTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PROMPT"]

Results = Mapping[str, Mapping[str, Any]]


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines of prompts and heads to their SVMs."""
    names = list(PROMPTS)
    least = min(c for name in names[:3] for c in results[name]["cosines"][-1] if c is not None)
    heaviest = ", ".join(decimals(results[name]["cosines"][-1][-1]) for name in names[3:])
    joint = {name: results[name] for name in JOINT}
    return Report(
        headline=f"prompts to their SVM at least {decimals(least)}; scores of 100 {heaviest} (two losses); "
        f"with heads {', '.join(decimals(result['prompt'][-1]) for result in joint.values())}",
        setting=(
            f"Normalised descent with rate 0.1, {prompt_cases.STEPS:,} steps, double precision; tasks and starts as "
            f"published (arXiv 2306.13596), the third with tokens drawn from seed {request.seed}. Cosines of p to the "
            "SVM of the tokens that each run selected; of the head v to the SVM of the labels of the selected tokens. "
            "There is no reference for these."
        ),
        sections=[("At the end", _table(results))],
        remarks=(
            "Cosine of the prompt to the SVM of the tokens it selects, mean and least over starts; best: runs that "
            "select the tokens of highest score; head: cosine of a head that is trained too to its own SVM. Under the "
            "logistic loss a sequence with a score of 100 has no gradient left, so the prompt follows the other.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={
            "cases": [
                {"case": name, "best": results[name]["best"], "cosines": results[name]["cosines"][-1]}
                for name in PROMPTS
            ],
            "joint": [
                {"case": name, "prompt": run["prompt"][-1], "head": run["head"][-1], "support": run["support"]}
                for name, run in joint.items()
            ],
        },
    )


def _table(results: Results) -> Table:
    rows = [_row(name, result) for name, result in results.items()]
    titles = ("task", "runs", "best tokens", "cosine of p", "least", "cosine of v")
    shorts = ("", "", "best", "p", "", "head")
    ranks = (0, 2, 1, 0, 1, 1)
    return [
        Field(title=title, short=short, cells=cells, rank=rank, text=title == "task")
        for title, short, rank, cells in zip(titles, shorts, ranks, zip(*rows, strict=True), strict=True)
    ]


def _row(name: str, result: Mapping[str, Any]) -> list[str]:
    if name in JOINT:
        prompt = decimals(result["prompt"][-1])
        return [name, "1", "-", prompt, prompt, decimals(result["head"][-1])]
    known = [cosine for cosine in result["cosines"][-1] if cosine is not None]
    mean, least = (sum(known) / len(known), min(known)) if known else (None, None)
    runs, best = len(result["best"]), sum(result["best"])
    return [name, str(runs), f"{best} of {runs}", decimals(mean), decimals(least), "-"]


def draw(results: Results) -> "Figure":
    """Plot two tasks in the plane, and the cosines of prompts and heads by step."""
    names = list(PROMPTS)
    figure, (first, second, alone, joint) = make_panels(4, title="Trained prompts and the SVMs that they converge to")
    for axes, name in ((first, names[1]), (second, names[2])):
        _draw_plane(axes, name, results[name])
    for colour, name in zip((1, 3, 2), names[:3], strict=True):
        values = np.array(results[name]["cosines"], dtype=np.float64)[1:]
        for run in range(values.shape[1]):
            plot_band(alone, results[name]["steps"][1:], values[:, run], (), (), label=name, colour=colour)
    for number, name in enumerate(JOINT):
        for offset, (symbol, key) in enumerate((("p", "prompt"), ("v", "head"))):
            label, colour = f"{symbol}, {name}", 2 * number + offset
            plot_band(joint, results[name]["steps"][1:], results[name][key][1:], (), (), label=label, colour=colour)
    for axes, title in ((alone, "prompts to their SVMs"), (joint, "prompt p and head v, trained together")):
        finish_panel(axes, title=title, x="steps", y="cosine", x_log=True, y_range=(-1.02, 1.02))
    return figure


def _draw_plane(axes: "Axes", title: str, result: Mapping[str, Any]) -> None:
    """Plot tokens, the paths of the prompts with logarithmic lengths, and the directions of the SVMs."""
    tokens, prompts = np.array(result["tokens"]), np.array(result["prompts"])
    best = np.array(result["best tokens"])
    is_best = np.arange(tokens.shape[1]) == best[:, None]
    norms = np.linalg.norm(prompts, axis=-1, keepdims=True)
    lengths = 1.2 * np.linalg.norm(tokens, axis=-1).max() * np.log1p(norms) / np.log1p(norms).max()
    paths = lengths * prompts / np.where(norms > 0, norms, 1.0)
    directions = {tuple(np.round(svm, 6)) for svm in result["svm"] if svm is not None}
    plot_plane(
        axes,
        filled=[(tokens[is_best], 0, "best tokens")],
        hollow=[(tokens[~is_best], 4, "other tokens")],
        paths=[(paths[:, run], 1, "prompts p, logarithmic length") for run in range(paths.shape[1])],
        rays=[(np.array(towards), 0, "prompt of an SVM") for towards in sorted(directions)],
    )
    finish_panel(axes, title=title, x="first coordinate", y="second coordinate")


PROMPT = Experiment(
    name="svm/prompt",
    title="Training a prompt",
    reproduces="a trained prompt converges to the SVM of the tokens it selects, also with other losses and with a head",
    cost="10 s",
    measure=measure_cells(
        prompt_cases.measure,
        lambda request: {name: {"case": name, "seed": request.seed} for name in (*PROMPTS, *JOINT)},
        packages=PACKAGES,
    ),
    report=report,
)
