r"""The attention SVM of least Frobenius norm, solved in its dual.

.. math:: \min_{\lambda \ge 0} \tfrac12 \lambda^T G \lambda - b^T \lambda, \qquad
          G_{jk} = (\delta_j \cdot \delta_k)(z_j \cdot z_k), \qquad W = \sum_j \lambda_j \delta_j z_j^T.

Constraints are scaled to length one first, so that nearly equal tokens and data of any scale lose no precision. The
same program with another right-hand side finds the nearest matrix that satisfies the constraints.
"""

from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.theories.max_margin.svm.constraints import Constraints, UnitConstraints

__all__ = ["LeastNorm", "Projection", "least_frobenius"]


@dataclass(frozen=True, slots=True)
class LeastNorm:
    """A matrix, the multipliers of the unscaled constraints, and whether both are optimal up to rounding."""

    W: Array
    multipliers: Array
    converged: bool


def least_frobenius(constraints: Constraints, *, near: Array | None = None, start: Array | None = None) -> LeastNorm:
    """Return the matrix of least Frobenius norm, or the one nearest to `near`, that satisfies the constraints.

    start: multipliers of a similar problem, to begin with
    """
    return Projection(constraints).nearest(near, start=start)


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
