"""The attention SVMs of trained runs, and the cosines of W to them."""

import math
from collections.abc import Sequence

from torch import Tensor

from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead_lab.theorems.max_margin.convergence import correlation

__all__ = ["PACKAGES", "PREDICTED", "cosines", "solve_all"]

PACKAGES = ("experiments/svm/descent", "theories/max_margin", "theorems/max_margin", "numerics")
"""The code that every measurement of this family depends on."""
PREDICTED = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
"""The norm whose SVM training leads to, by what is trained."""


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
