r"""The attention SVM of least nuclear norm: shrink the singular values, restore the margins, and so on.

.. math:: V = \mathrm{shrink}_\tau(S), \qquad P = \mathrm{nearest}(2V - S), \qquad S \leftarrow S + \omega (P - V),

where shrink takes tau off every singular value and nearest is the nearest matrix that meets the constraints, itself a
Frobenius problem, begun with the tokens that were active the last time (Douglas and Rachford's splitting, Lions and
Mercier 1979, over-relaxed as in Eckstein and Bertsekas 1992). Where it rests, V = P is the answer, and the multipliers
of the nearest matrix prove it. They bracket the margin at every look, whatever the steps were.
"""

from dataclasses import replace

import numpy as np
from scipy import linalg

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import Least, Projection
from clearhead.theories.max_margin.svm.norms import bracket
from clearhead.theories.max_margin.svm.solution import Norm

__all__ = ["least_nuclear"]

STEPS, LOOK = 6000, 3
RELAXED = 1.65
"""Omega. 1.5 to 1.7 need the fewest steps on drawn problems."""
UNBALANCED, LARGEST_CHANGE = 2.0, 5.0
FIRST_CHANGE, PAUSE = 5, 1.3
"""Tau changes where the two halves are out of balance by the first, at most by the second, not before so many steps,
and ever more rarely: the steps settle only while it stays."""
PATIENCE = 1.5
"""When P is proved, V, whose rank is exact, may take so many times as many steps."""


def least_nuclear(constraints: Constraints, least: Least, *, tolerance: float) -> Least:
    """The matrix of least nuclear norm that meets the constraints, from the one of least Frobenius norm.

    It has converged if the bracket of its margin is as narrow as the tolerance; otherwise it is the best that was met.
    """
    left, delta = _within_span(constraints.delta)
    right, z = _within_span(constraints.z)
    rows = replace(constraints, delta=delta, z=z)
    best = _Best(rows, tolerance)
    best.offer(left.T @ least.W @ right, least.multipliers)
    if not best.proved():
        _split(rows, least.multipliers, best)
    return Least(left @ best.answer() @ right.T, best.multipliers, best.proved())


def _within_span(vectors: Array) -> tuple[Array, Array]:
    """An orthonormal basis, in columns, of a space that holds the vectors, and their coordinates in it.

    Norms of matrices that do not change with such coordinates are as well found there.
    """
    count, width = vectors.shape
    if count >= width:
        return np.eye(width), vectors
    basis, coordinates = linalg.qr(vectors.T, mode="economic", check_finite=False)
    return basis, np.ascontiguousarray(coordinates.T)


class _Best:
    """The matrices that reach most and the multipliers that prove most, of all that were offered.

    Matrices whose rank is exact are kept beside the others, and preferred once they are proved.
    """

    def __init__(self, rows: Constraints, tolerance: float) -> None:
        self.multipliers = np.zeros(rows.count)
        self._rows, self._tolerance, self._high = rows, tolerance, np.inf
        self._low = {False: -np.inf, True: -np.inf}
        self._W = {False: np.zeros(0), True: np.zeros(0)}

    def offer(self, W: Array, multipliers: Array, *, exact: bool = False) -> None:
        """exact: W is of exact rank, with singular values that are zero and not only small."""
        found = bracket(self._rows, W, multipliers, Norm.NUCLEAR)
        if found.high < self._high:
            self._high, self.multipliers = found.high, multipliers
        if found.low > self._low[exact]:
            self._low[exact], self._W[exact] = found.low, W

    def proved(self, *, exact: bool = False) -> bool:
        """Whether the bracket is narrow enough, by a matrix of exact rank or by any."""
        low = self._low[True] if exact else max(self._low.values())
        return self._high - low <= self._tolerance * self._high

    def answer(self) -> Array:
        """The one to give."""
        return self._W[self.proved(exact=True) or self._low[True] > self._low[False]]


def _split(rows: Constraints, multipliers: Array, best: _Best) -> None:
    """The steps of the module's docstring, until the best is proved."""
    projection = Projection(rows)
    W = best.answer()
    tau = float(np.linalg.norm(W, 2))
    S, before = W + W, np.zeros_like(W)
    due, enough = FIRST_CHANGE, float(STEPS)
    for step in range(STEPS):
        V = _shrunk(S, tau)
        nearest = projection.nearest(2 * V - S, start=multipliers)
        if not nearest.converged:
            return
        P, multipliers = nearest.W, nearest.multipliers
        if step % LOOK == 0:
            best.offer(P, multipliers)
            if not rows.equal.any():
                best.offer(V, multipliers, exact=True)
            if best.proved(exact=True) or step > enough:
                return
            if best.proved():
                enough = min(enough, PATIENCE * step if not rows.equal.any() else step)
        moved = S - V
        S = S + RELAXED * (P - V)
        if step >= due:
            change = _balance(P - V, P, V - before, moved)
            if max(change, 1 / change) > UNBALANCED:
                change = min(max(change, 1 / LARGEST_CHANGE), LARGEST_CHANGE)
                S, tau = V + change * (S - V), change * tau
                due = int(PAUSE * step) + FIRST_CHANGE
        before = V


def _shrunk(S: Array, tau: float) -> Array:
    """tau off every singular value, through the eigenvalues of the smaller product: three times quicker than singular
    values, and the small ones, which squares lose, are those that go."""
    if len(S) > S.shape[1]:
        return _shrunk(S.T, tau).T
    squares, U = np.linalg.eigh(S @ S.T)
    values = np.sqrt(np.maximum(squares, 0))
    kept = values > tau
    U = U[:, kept]
    shrunk: Array = (U * (1 - tau / values[kept])) @ (U.T @ S)
    return shrunk


def _balance(missed: Array, P: Array, turned: Array, moved: Array) -> float:
    """What tau should be multiplied by: the square root of how far the answer still moves over how far V and P are
    apart, both relative to their sizes (Boyd et al. 2011, section 3.4.1, without units)."""
    apart = float(np.linalg.norm(missed) / (np.linalg.norm(P) or 1.0))
    still = float(np.linalg.norm(turned) / (np.linalg.norm(moved) or 1.0))
    return float(np.sqrt(still / apart)) if apart > 0 and still > 0 else 1.0
