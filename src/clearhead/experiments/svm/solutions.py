"""What the experiments on attention SVMs share: the SVM beside a trained run."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead.theories.max_margin.optimality import correlation

__all__ = ["ROOMS", "nearness", "solve_all"]

ROOMS = ("theories/max_margin", "experiments/svm/descent", "numerics")
"""What every kept measurement hangs on."""


def solve_all(
    tokens: Tensor,
    queries: Tensor,
    selected: Tensor,
    norm: Norm,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[MaxMargin]:
    """The SVM of every run, for the tokens that it selects."""
    found = []
    for run in range(len(tokens)):
        found.append(attention_svm(tokens[run], queries[run], selected[run], norm=norm))
        if progress is not None:
            progress(run + 1, len(tokens))
    return found


def nearness(W: Tensor, solutions: Sequence[MaxMargin]) -> list[float | None]:
    """Cosines of every run's W to its SVM; None where there is none, or it is zero."""
    found: list[float | None] = []
    for own, solution in zip(W, solutions, strict=True):
        cosine = float("nan") if solution.W is None else float(correlation(own, solution.W))
        found.append(cosine if torch.isfinite(torch.tensor(cosine)) else None)
    return found
