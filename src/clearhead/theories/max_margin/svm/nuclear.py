r"""The attention SVM of least nuclear norm, by Douglas-Rachford splitting.

.. math:: V = \mathrm{shrink}_\tau(S), \qquad P = \mathrm{nearest}(2V - S), \qquad S \leftarrow S + \omega (P - V),

where shrink subtracts tau from every singular value and nearest is the nearest matrix that satisfies the constraints, a
Frobenius problem that starts from the multipliers of the previous iteration (Lions and Mercier 1979; over-relaxed as in
Eckstein and Bertsekas 1992). At a fixed point V = P is the solution, and the multipliers of the projection prove it.
They bound the margin at every iteration, converged or not.
"""

from dataclasses import replace

import numpy as np
from scipy import linalg

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.certificate import bracket
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, Projection
from clearhead.theories.max_margin.svm.solution import Norm

STEPS, CHECK_EVERY = 6000, 3
RELAXATION = 1.65
"""omega. Values from 1.5 to 1.7 need the fewest steps on random problems."""
IMBALANCE, LARGEST_CHANGE = 2.0, 5.0
"""tau changes if the two residuals differ by more than the first factor, and by at most the second."""
FIRST_CHANGE, PAUSE = 5, 1.3
"""tau stays constant for the first steps, and ever longer after each change: the iteration converges only meanwhile."""
PATIENCE = 1.5
"""Once P is proved, V, whose rank is exact, gets this many times as many steps to be proved."""


def least_nuclear(constraints: Constraints, least: LeastNorm, *, tolerance: float) -> LeastNorm:
    """Return the matrix of least nuclear norm that satisfies the constraints, from that of least Frobenius norm.

    It has converged if the bounds on its margin are within the tolerance; otherwise it is the best of all iterations.
    """
    left, delta = _span_coordinates(constraints.delta)
    right, z = _span_coordinates(constraints.z)
    rows = replace(constraints, delta=delta, z=z)
    best = _Best(rows, tolerance)
    best.update(left.T @ least.W @ right, least.multipliers)
    if not best.proved():
        _split(rows, least.multipliers, best)
    return LeastNorm(left @ best.matrix() @ right.T, best.multipliers, best.proved())


def _span_coordinates(vectors: Array) -> tuple[Array, Array]:
    """Return an orthonormal basis, in columns, of a space that contains the vectors, and their coordinates in it.

    The nuclear norm does not change with such coordinates, so the smaller problem has the same solution.
    """
    count, width = vectors.shape
    if count >= width:
        return np.eye(width), vectors
    basis, coordinates = linalg.qr(vectors.T, mode="economic", check_finite=False)
    return basis, np.ascontiguousarray(coordinates.T)


class _Best:
    """The matrices with the largest margin and the multipliers with the smallest bound of all iterations.

    The best matrix of exact rank is stored separately and preferred once it is proved.
    """

    def __init__(self, rows: Constraints, tolerance: float) -> None:
        self.multipliers = np.zeros(rows.count)
        self._rows, self._tolerance, self._high = rows, tolerance, np.inf
        self._low = {False: -np.inf, True: -np.inf}
        self._W = {False: np.zeros(0), True: np.zeros(0)}

    def update(self, W: Array, multipliers: Array, *, exact: bool = False) -> None:
        """Store W and the multipliers if they improve the bounds; `exact`: the small singular values of W are zero."""
        bounds = bracket(self._rows, W, multipliers, Norm.NUCLEAR)
        if bounds.high < self._high:
            self._high, self.multipliers = bounds.high, multipliers
        if bounds.low > self._low[exact]:
            self._low[exact], self._W[exact] = bounds.low, W

    def proved(self, *, exact: bool = False) -> bool:
        """Return whether the bounds are within the tolerance, for a matrix of exact rank or for any."""
        low = self._low[True] if exact else max(self._low.values())
        return self._high - low <= self._tolerance * self._high

    def matrix(self) -> Array:
        """Return the matrix of exact rank if it is proved or has the largest margin, otherwise the other one."""
        return self._W[self.proved(exact=True) or self._low[True] > self._low[False]]


def _split(rows: Constraints, multipliers: Array, best: _Best) -> None:
    """Iterate the splitting until the best matrix is proved."""
    projection = Projection(rows)
    W = best.matrix()
    tau = float(np.linalg.norm(W, 2))
    S, before = W + W, np.zeros_like(W)
    next_change, last_step = FIRST_CHANGE, float(STEPS)
    for step in range(STEPS):
        V = _shrink(S, tau)
        nearest = projection.nearest(2 * V - S, start=multipliers)
        if not nearest.converged:
            return
        P, multipliers = nearest.W, nearest.multipliers
        if step % CHECK_EVERY == 0:
            best.update(P, multipliers)
            if not rows.equal.any():
                best.update(V, multipliers, exact=True)
            if best.proved(exact=True) or step > last_step:
                return
            if best.proved():
                last_step = min(last_step, PATIENCE * step if not rows.equal.any() else step)
        dual = S - V
        S = S + RELAXATION * (P - V)
        if step >= next_change:
            change = _balance(P - V, P, V - before, dual)
            if max(change, 1 / change) > IMBALANCE:
                change = min(max(change, 1 / LARGEST_CHANGE), LARGEST_CHANGE)
                S, tau = V + change * (S - V), change * tau
                next_change = int(PAUSE * step) + FIRST_CHANGE
        before = V


def _shrink(S: Array, tau: float) -> Array:
    """Subtract tau from every singular value of S.

    The eigenvalues of the smaller Gram matrix take a third of the time of an SVD. They lose the small singular values
    to rounding, but those become zero anyway.
    """
    if len(S) > S.shape[1]:
        return _shrink(S.T, tau).T
    squares, U = np.linalg.eigh(S @ S.T)
    values = np.sqrt(np.maximum(squares, 0))
    positive = values > tau
    U = U[:, positive]
    shrunk: Array = (U * (1 - tau / values[positive])) @ (U.T @ S)
    return shrunk


def _balance(primal_residual: Array, P: Array, step: Array, dual: Array) -> float:
    """Return the factor for tau: the square root of the relative dual residual over the relative primal residual.

    Boyd et al. 2011, section 3.4.1, with residuals relative to the size of the variables.
    """
    primal = float(np.linalg.norm(primal_residual) / (np.linalg.norm(P) or 1.0))
    dual_residual = float(np.linalg.norm(step) / (np.linalg.norm(dual) or 1.0))
    return float(np.sqrt(dual_residual / primal)) if primal > 0 and dual_residual > 0 else 1.0
