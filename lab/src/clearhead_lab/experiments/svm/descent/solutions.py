"""What the experiments of this family share: their code, the SVMs of trained runs, and the cosines of W to them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Figure, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, evaluate, evaluate_by_autograd
from clearhead_lab.experiments.svm.descent.dynamics import Trajectory, train
from clearhead_lab.experiments.svm.descent.rules import Direct, Factored, NormalisedDescent, Parameterisation, Rule
from clearhead_lab.experiments.svm.descent.tasks import draw_small_start, draw_start, draw_tasks
from clearhead_lab.theorems.max_margin.convergence import correlation, globally_optimal, locally_optimal, saturated

PACKAGES = ("experiments/svm/descent", "theories/max_margin", "theorems/max_margin", "numerics")
"""The code that every measurement of this family depends on."""
PREDICTED = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
"""The norm whose SVM training leads to, by what is trained."""

Curve = Sequence[Sequence[float | None]]
"""The numbers of all runs by recorded step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An optimiser and what it trains.

    autograd: use autograd's gradient, which is only rounding once attention is saturated
    """

    rule: Rule = field(default_factory=NormalisedDescent)
    parameters: Parameterisation = field(default_factory=Direct)
    autograd: bool = False


def train_by(
    method: Method, seeds: Sequence[int], *, n: int, t: int, d: int, steps: int, record: Iterable[int]
) -> tuple[AttentionTask, Trajectory]:
    """Draw a task for each seed and train on it from a start as of a linear layer."""
    task = draw_tasks(seeds, n=n, t=t, d=d)
    start = draw_start(seeds, (d, d), (d, d))
    return task, train(
        task,
        start[:1] if isinstance(method.parameters, Direct) else start,
        steps=steps,
        record=record,
        parameters=method.parameters,
        rule=method.rule,
        evaluation=evaluate_by_autograd if method.autograd else evaluate,
    )


def train_from_zero(
    trained: str, task: AttentionTask, seeds: Sequence[int], *, steps: int, record: Iterable[int] | None = None
) -> Trajectory:
    """Train W, or K and Q, as `PREDICTED` names them, by normalised descent from W = 0; K is small and random."""
    d = task.tokens.shape[-1]
    start = (torch.zeros(len(seeds), d, d).double(),) if trained == "W" else draw_small_start(seeds, (d, d))
    return train(task, start, steps=steps, record=record, parameters=Direct() if trained == "W" else Factored())


def selection(task: AttentionTask, run: Trajectory, solutions: Sequence[MaxMargin]) -> dict[str, list[bool]]:
    """Return for every run whether attention saturates at the end, and whether the selected tokens are optimal."""
    selected, scores = run.selected[-1], task.token_scores
    return {
        "saturated": saturated(run.attention[-1]).tolist(),
        "global": globally_optimal(scores, selected).tolist(),
        "local": [bool(locally_optimal(scores[i], selected[i], solved.support)) for i, solved in enumerate(solutions)],
    }


def draw_cosines(
    curves: Mapping[str, Mapping[Norm, Curve]], steps: Sequence[float], *, title: str, x: str = "steps"
) -> Figure:
    """Plot the mean cosines to the SVMs of several norms by step: a panel for each name."""
    figure, panels = make_panels(len(curves), title=title)
    for axes, (name, by_norm) in zip(panels, curves.items(), strict=True):
        for colour, (norm, values) in enumerate(by_norm.items()):
            plot_mean(axes, steps, values, label=f"cosine to the SVM of least {norm} norm", colour=colour)
        finish_panel(axes, title=name, x=x, y="cosine", x_log=True, y_range=(0.0, 1.02))
    return figure


def svm_experiment(
    name: str,
    measure: Callable[..., Any],
    cells: Callable[[Request], Mapping[str, Mapping[str, Any]]],
    report: Callable[[Any, Request], Report],
    *,
    seeds: bool = True,
    **words: str,
) -> Experiment:
    """Return an experiment that measures cells, each cached. seeds: whether it repeats runs; words: for lists"""
    return Experiment(
        name=f"svm/{name}",
        measure=measure_cells(measure, cells, packages=PACKAGES),
        report=report,
        options=frozenset({"seeds"} if seeds else ()),
        **words,
    )


def solve_all(tokens: Tensor, queries: Tensor, selected: Tensor, norm: Norm) -> list[MaxMargin]:
    """Return the SVM of every run, for the tokens that the run selects."""
    return [attention_svm(x, z, chosen, norm=norm) for x, z, chosen in zip(tokens, queries, selected, strict=True)]


def cosines(W: Tensor, solutions: Sequence[MaxMargin]) -> list[float | None]:
    """Return the cosine of every run's W to its SVM; None where the SVM has no solution or is zero."""
    values = [
        math.nan if solution.W is None else float(correlation(matrix, solution.W))
        for matrix, solution in zip(W, solutions, strict=True)
    ]
    return [value if math.isfinite(value) else None for value in values]
