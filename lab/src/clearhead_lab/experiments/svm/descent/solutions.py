"""What the experiments of this family share: their code, the SVMs of trained runs, and the cosines of W to them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, evaluate, evaluate_by_autograd
from clearhead_lab.experiments.svm.descent.dynamics import Trajectory, train
from clearhead_lab.experiments.svm.descent.rules import Direct, NormalisedDescent, Parameterisation, Rule
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead_lab.theorems.max_margin.convergence import correlation

PACKAGES = ("experiments/svm/descent", "theories/max_margin", "theorems/max_margin", "numerics")
"""The code that every measurement of this family depends on."""
PREDICTED = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
"""The norm whose SVM training leads to, by what is trained."""


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
