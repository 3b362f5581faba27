r"""The attention SVM of least Frobenius norm, through its dual.

.. math:: \min_{\lambda \ge 0} \tfrac12 \lambda^T G \lambda - b^T \lambda, \qquad
          G_{jk} = (\delta_j \cdot \delta_k)(z_j \cdot z_k), \qquad W = \sum_j \lambda_j \delta_j z_j^T.

Rows are scaled to length one first, so tokens that are nearly equal and data of any scale do no harm. The same program
with another right-hand side finds the nearest matrix that satisfies the constraints.
"""

from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.theories.max_margin.svm.constraints import Constraints, UnitConstraints

__all__ = ["Least", "Projection", "least_frobenius"]


@dataclass(frozen=True, slots=True)
class Least:
    """A matrix, the multipliers of the constraints as they are (unscaled), and whether they are optimal to rounding."""

    W: Array
    multipliers: Array
    converged: bool


def least_frobenius(constraints: Constraints, *, near: Array | None = None, start: Array | None = None) -> Least:
    """The matrix of least Frobenius norm, or the one nearest to `near`, that meets the constraints.

    `start` are multipliers of a problem like it.
    """
    return Projection(constraints).nearest(near, start=start)


class Projection:
    """Nearest matrices that meet the same constraints: what is computed for one is used for the next."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints, self._lengths = constraints, constraints.units
        self._program = NonnegativeQP(
            UnitConstraints(constraints), free=constraints.equal if constraints.equal.any() else None
        )

    def nearest(self, near: Array | None = None, *, start: Array | None = None) -> Least:
        """The one nearest to `near`, or to zero."""
        rows, lengths = self._constraints, self._lengths
        linear = (rows.bound if near is None else rows.bound - rows.values(near)) / lengths
        unit = float(np.abs(linear).max(initial=0.0)) or 1.0
        found = self._program.solve(linear / unit, start=None if start is None else start * lengths / unit)
        W = found.w * unit
        return Least(W if near is None else near + W, found.x * unit / lengths, found.converged)
