r"""The attention SVM of least Frobenius norm, solved in its dual, and whether any matrix selects the tokens.

.. math:: \min_{\lambda \ge 0} \tfrac12 \lambda^T G \lambda - b^T \lambda, \qquad
          G_{jk} = (\delta_j \cdot \delta_k)(z_j \cdot z_k), \qquad W = \sum_j \lambda_j \delta_j z_j^T.

Constraints are scaled to length one first, so that nearly equal tokens and data of any scale lose no precision. The
same program with another right-hand side finds the nearest matrix that satisfies the constraints.

The decision is exact. No W has :math:`\langle A_j, W\rangle > 0` for all j if and only if zero is a convex combination
of the A_j. For A_j of length one this is a least-distance problem: is there a W with :math:`\langle A_j, W\rangle \ge
1`? If not, the weights of the combination name a minimal set of contradicting tokens: without any one of them there is
no contradiction.
"""

from dataclasses import dataclass

import numpy as np

from clearhead.numerics.least_distance import least_distance
from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.theories.max_margin.svm.constraints import Constraints, Indices, UnitConstraints
from clearhead.theories.max_margin.svm.solution import Conflict


@dataclass(frozen=True, slots=True)
class LeastNorm:
    """A matrix, the multipliers of the unscaled constraints, and whether both are optimal up to rounding."""

    W: Array
    multipliers: Array
    converged: bool


def least_frobenius(constraints: Constraints, *, start: Array | None = None) -> LeastNorm:
    """Return the matrix of least Frobenius norm that satisfies the constraints.

    start: multipliers of a similar problem, to begin with
    """
    return Projection(constraints).nearest(start=start)


class Projection:
    """Projection on the matrices that satisfy the constraints; factors are reused from one call to the next."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints, self._lengths = constraints, constraints.units
        self._program = NonnegativeQP(
            UnitConstraints(constraints), free=constraints.equal if constraints.equal.any() else None
        )

    def nearest(self, near: Array | None = None, *, start: Array | None = None) -> LeastNorm:
        """Return the feasible matrix nearest to `near`, or to zero."""
        rows, lengths = self._constraints, self._lengths
        linear = (rows.bound if near is None else rows.bound - rows.values(near)) / lengths
        unit = float(np.abs(linear).max(initial=0.0)) or 1.0
        dual = self._program.solve(linear / unit, start=None if start is None else start * lengths / unit)
        W = dual.w * unit
        return LeastNorm(W if near is None else near + W, dual.x * unit / lengths, dual.converged)


NEGLIGIBLE = 1e-13
"""Weights below this, relative to the largest, are rounding errors."""


def zero_constraint_conflict(constraints: Constraints, selected: Indices) -> Conflict | None:
    """Return a conflict if some A_j is zero: a copy of the selected token, or a zero query."""
    zero = np.flatnonzero((constraints.lengths == 0) & ~constraints.equal)
    if not len(zero):
        return None
    pairs = tuple((int(constraints.sequence[j]), int(constraints.token[j])) for j in zero)
    i, t = pairs[0]
    if constraints.z[i].any():
        reason = f"token {t} of sequence {i} is a copy of the selected token {int(selected[i])}"
    else:
        reason = f"the query of sequence {i} is zero"
    return Conflict(tokens=pairs, weights=(1 / len(pairs),) * len(pairs), residual=0.0, reason=reason)


def decide(constraints: Constraints, guess: Array) -> Conflict | LeastNorm | None:
    """Return a conflict or a separating matrix (not of least norm); None if the least squares do not converge.

    guess: multipliers, the largest of which are tried first, because they grow without bound if there is a conflict
    """
    lengths, equal = constraints.units, constraints.equal
    nearest = least_distance(
        UnitConstraints(constraints), np.where(equal, 0.0, 1.0), free=equal, guess=guess * lengths, fraction=0.0
    )
    if nearest is None:
        return None
    multipliers = nearest.weights / lengths
    if not nearest.exists:
        return _conflict(constraints, multipliers)
    return LeastNorm(constraints.combined(multipliers), multipliers, converged=False)


def _conflict(constraints: Constraints, weights: Array) -> Conflict:
    """Describe weights of the unscaled A_j whose weighted sum is zero."""
    inequality = ~constraints.equal
    share = np.where(inequality, weights * constraints.lengths, 0.0)
    share = np.where(share > NEGLIGIBLE * share.max(), share, 0.0)
    weights = np.where(inequality & (share == 0), 0.0, weights)
    total = float(share.sum())
    order = np.argsort(-share, kind="stable")[: int((share > 0).sum())]
    pairs = tuple((int(constraints.sequence[j]), int(constraints.token[j])) for j in order)
    names = ", ".join(f"token {t} of sequence {i}" for i, t in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return Conflict(
        tokens=pairs,
        weights=tuple(float(w) for w in share[order] / total),
        residual=float(np.linalg.norm(constraints.combined(weights))) / total,
        reason=f"these tokens cannot all score below the selected ones: {names}{more}",
    )
