"""Training a prompt, which scores tokens by x.p, alone and together with the head (Tarzanagh et al., 2306.13596).

The tasks and starts are the published ones; each run is compared with the SVM of the tokens that it selects.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.report.plots import finish_panel, make_panels, plot_band
from clearhead.report.tables import Field, Table
from clearhead.theories.max_margin import attention_svm
from clearhead_lab.experiments.estimates import decimals
from clearhead_lab.experiments.experiment import Axes, Figure, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import CORRELATION, LOGISTIC, AttentionTask, LinearHead, Loss
from clearhead_lab.experiments.svm.descent.dynamics import train, train_jointly
from clearhead_lab.experiments.svm.descent.solutions import svm_experiment
from clearhead_lab.experiments.svm.plane import plot_plane
from clearhead_lab.theorems.max_margin.convergence import correlation, globally_optimal

STEPS = 1000
RECORDED = sorted({0, *range(1, 10), *(int(step) for step in np.geomspace(10, STEPS, 50))})
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
"""Where the published prompts start, along one axis."""
FACTORS = (1.0, 2.0, 5.0, 10.0, 100.0)
"""The score of one sequence's best token relative to the other's, where losses are compared."""


def measure(*, case: str, seed: int) -> dict[str, Any]:
    """Train the prompt, or the prompt and the head, of one published task."""
    return JOINT[case]() if case in JOINT else PROMPTS[case](seed)


def _task(tokens: Tensor, *, loss: Loss = LOGISTIC) -> AttentionTask:
    """Return tasks with tokens (runs, n, t, 3): the prompt sees two coordinates, the third is the score."""
    values = tokens.double()
    runs, n = values.shape[:2]
    return AttentionTask(
        tokens=values[..., :2].contiguous(),
        queries=torch.ones(runs, n, 1).double(),
        labels=torch.ones(runs, n).double(),
        head=LinearHead(torch.tensor([0.0, 0.0, 1.0]).double().expand(runs, 3)),
        loss=loss,
        values=values,
    )


def _train_prompts(task: AttentionTask, start: Tensor) -> dict[str, Any]:
    """Train from every start; return the prompts and their cosines to the SVM of the tokens that each run selects."""
    run = train(task, (start,), steps=STEPS, record=RECORDED)
    selected = run.selected[-1]
    solutions = [attention_svm(x, None, chosen).W for x, chosen in zip(task.tokens, selected, strict=True)]
    return {
        "steps": run.steps,
        "cosines": [[_cosine(W, svm) for W, svm in zip(matrices, solutions, strict=True)] for matrices in run.W],
        "best": globally_optimal(task.token_scores, selected).tolist(),
        "tokens": task.tokens[0].tolist(),
        "best tokens": task.token_scores[0].argmax(dim=-1).tolist(),
        "prompts": run.W[..., 0].tolist(),
        "svm": [None if svm is None else svm.flatten().tolist() for svm in solutions],
    }


def _cosine(W: Tensor, svm: Tensor | None) -> float | None:
    value = None if svm is None else float(correlation(W, svm))
    return None if value is None or not np.isfinite(value) else value


def _starts(axis: int) -> Tensor:
    start = torch.zeros(len(STARTS), 2, 1).double()
    start[:, axis, 0] = torch.tensor(STARTS).double()
    return start


def one_sequence(last: float) -> dict[str, Any]:
    """Train on three tokens; the third has the score `last`."""
    tokens = torch.tensor([[[-0.1, 1.0, 1.0], [1.0, 0.0, 0.9], [0.0, 0.0, last]]], dtype=torch.float64)
    return _train_prompts(_task(tokens.expand(len(STARTS), -1, -1, -1)), _starts(axis=1))


def three_sequences(seed: int) -> dict[str, Any]:
    """Train on sequences of seven tokens: the best around (1, 0), three around (-1, 1), three around (-1/2, -1/2)."""
    tokens = 0.2 * torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] += torch.tensor([1.0, 0.0, 0.0])
    tokens[:, 1:4] += torch.tensor([-1.0, 1.0, 0.0])
    tokens[:, 4:] += torch.tensor([-0.5, -0.5, 0.0])
    tokens[..., 2] = torch.tensor([1.0] + 6 * [0.5])
    return _train_prompts(_task(tokens.expand(len(STARTS), -1, -1, -1)), _starts(axis=0))


def by_loss(loss: Loss) -> dict[str, Any]:
    """Train on two sequences of two tokens; one best score is `FACTORS` times the other."""
    tokens = torch.zeros(len(FACTORS), 2, 2, 3)
    tokens[:, 0, 1] = torch.stack([torch.tensor([1.0, 1.0, factor]) for factor in FACTORS])
    tokens[:, 1, 1] = torch.tensor([1.0, -1.0, 1.0])
    return _train_prompts(_task(tokens, loss=loss), torch.zeros(len(FACTORS), 2, 1).double())


def jointly(height: float) -> dict[str, Any]:
    """Train a prompt and a head on three sequences of two tokens, one of them zero; the third's other is (1/2, height).

    A sequence whose selected token is not a support vector of the head needs no margin, only a higher score, which it
    has here. It is left out of the prompt's problem.
    """
    tokens = torch.zeros(1, 3, 2, 2).double()
    tokens[0, :, 1] = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, height]])
    labels = torch.tensor([[1.0, -1.0, 1.0]]).double()
    head = LinearHead(torch.tensor([[-1.0, 0.0]]).double())
    task = AttentionTask(tokens=tokens, queries=torch.ones(1, 3, 1).double(), labels=labels, head=head)
    run = train_jointly(task, torch.tensor([[[0.0], [-1.0]]]).double(), steps=STEPS, record=RECORDED)
    selected = run.attention.selected[-1, 0]
    chosen = labels[0, :, None] * tokens[0, torch.arange(3), selected]
    with_zero = torch.stack([chosen, torch.zeros_like(chosen)], dim=1)
    head_svm = attention_svm(with_zero, None, torch.zeros(3, dtype=torch.int64))
    support = head_svm.support[:, 1]
    prompt_svm = attention_svm(tokens[0], None, selected, mask=support[:, None].expand(3, 2))
    assert head_svm.W is not None, "the published labels can be separated"
    assert prompt_svm.W is not None, "the published tokens can be selected"
    return {
        "steps": run.attention.steps,
        "prompt": [float(correlation(W[0], prompt_svm.W)) for W in run.attention.W],
        "head": [float(correlation(v.mT, head_svm.W)) for v in run.v],
        "support": support.tolist(),
    }


PROMPTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "1 sequence, others equal": lambda seed: one_sequence(0.9),
    "1 sequence, one worse": lambda seed: one_sequence(0.0),
    "3 sequences of 7 tokens": three_sequences,
    f"scores 1 to {FACTORS[-1]:g}, logistic loss": lambda seed: by_loss(LOGISTIC),
    f"scores 1 to {FACTORS[-1]:g}, correlation loss": lambda seed: by_loss(CORRELATION),
}
JOINT: dict[str, Callable[[], dict[str, Any]]] = {
    "with a head, 3 support": lambda: jointly(1.0),
    "with a head, 2 support": lambda: jointly(1.5),
}
"""Tasks by name; the number of sequences whose token is a support vector of the head."""


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
            f"Normalised descent with rate 0.1, {STEPS:,} steps, double precision; tasks and starts as "
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


def draw(results: Results) -> Figure:
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


def _draw_plane(axes: Axes, title: str, result: Mapping[str, Any]) -> None:
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


PROMPT = svm_experiment(
    "prompt",
    measure,
    lambda request: {name: {"case": name, "seed": request.seed} for name in (*PROMPTS, *JOINT)},
    report,
    title="Training a prompt",
    reproduces="a trained prompt converges to the SVM of the tokens it selects, also with other losses and with a head",
    cost="10 s",
    seeds=False,
)
