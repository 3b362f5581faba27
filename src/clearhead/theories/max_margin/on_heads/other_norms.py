"""SVMs of least nuclear norm and of least max-entry norm, and a head's cosines with them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.problems import Fit
from clearhead.theories.max_margin.on_heads.random_heads import Maps, Space
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm
from clearhead.theories.max_margin.svm.norms import least_max_entry, least_nuclear
from clearhead.theories.theory import Claim

GAP = 1e-4
"""Tolerance of these SVMs: it changes a cosine by less than the third digit."""
ENTRIES = 128
"""Largest size of W for the max-entry SVM: larger linear programs, also solved for all random heads, take longer than
all other claims together."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices W of the layer's heads and of the random heads, computed on demand."""

    space: Space
    random: Maps

    def model_head(self, h: int) -> Array:
        """Return W of one of the layer's heads."""
        return self.space.matrix(h).numpy()

    def random_heads(self) -> list[Array]:
        """Return W of the random heads."""
        left, right = self.random.left.double(), self.random.right.double()
        return list((left @ right.mT).numpy())


def other_cosines(fit: Fit | None, W: Array) -> Mapping[Claim, float]:
    """Return <W, W^mm> / (|W| |W^mm|) in both norms; NaN if no matrix separates, or W is too large for max-entry."""
    if fit is None:
        return {c.COSINE_NUCLEAR: float("nan"), c.COSINE_MAX_ENTRY: float("nan")}
    rows = fit.problem.constraints()
    least = LeastNorm(rows.combined(fit.multipliers), fit.multipliers, converged=True)
    return {claim: cosine(W, svm) for claim, svm in other_svms(rows, least).items()}


def other_svms(rows: Constraints, least: LeastNorm) -> dict[Claim, Array | None]:
    """Return the SVM of each norm, given that of least Frobenius norm; None if unsolved, or too large for max-entry."""
    solutions: dict[Claim, LeastNorm | None] = {
        c.COSINE_NUCLEAR: least_nuclear(rows, least, tolerance=GAP),
        c.COSINE_MAX_ENTRY: least_max_entry(rows, least, tolerance=GAP) if least.W.size <= ENTRIES else None,
    }
    return {claim: svm.W if svm is not None and svm.converged else None for claim, svm in solutions.items()}


def cosine(W: Array | None, other: Array | None) -> float:
    """Return <W, W'> / (|W| |W'|); NaN if one of them is missing."""
    if W is None or other is None:
        return float("nan")
    return float((W * other).sum()) / float(np.linalg.norm(W) * np.linalg.norm(other))
