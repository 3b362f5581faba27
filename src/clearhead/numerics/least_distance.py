r"""Least distance programming: the shortest w with :math:`f_j \cdot w \ge b_j`, or a proof that none exists.

It is a nonnegative least squares problem (Lawson and Hanson 1974, chapter 23): minimise
:math:`|\sum_j u_j f_j|^2 + (1 - b^T u)^2` over :math:`u \ge 0`. The residual is zero if and only if there is no w, and
the weights then prove it; otherwise :math:`w = \sum_j u_j f_j / (1 - b^T u)`.

Slower than descent and exchange for many vectors, but it terminates whatever their angles are. It works on a subset of
the vectors, to which those that the current w violates are added.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from clearhead.errors import InputError
from clearhead.numerics.moments import Array


@runtime_checkable
class UnitRows(Protocol):
    """Unit vectors f_j, which need not be stored; they and w are arrays of one shape."""

    @property
    def size(self) -> int:
        """Return the number of vectors."""

    @property
    def rank(self) -> int:
        """Return an upper bound on the rank."""

    def combined(self, x: Array) -> Array:
        """Return the sum of x_j f_j."""

    def values(self, w: Array) -> Array:
        """Return f_j . w for every j."""

    def products(self, x: Array) -> Array:
        """Return f_j . (sum of x_k f_k) for every j; faster than `values(combined(x))` if the products are stored."""

    def gram(self, where: NDArray[np.int64]) -> Array:
        """Return f_j . f_k for these j and k."""

    def columns(self, where: NDArray[np.int64]) -> Array:
        """Return these vectors as columns, in coordinates of a space that contains them."""


@dataclass(frozen=True, slots=True)
class GramRows:
    """Vectors given by their inner products; a vector w in their span is given by its products with them."""

    products_of_pairs: Array

    @property
    def size(self) -> int:
        """Return the number of vectors."""
        return len(self.products_of_pairs)

    @property
    def rank(self) -> int:
        """Return an upper bound on the rank."""
        return self.size

    def combined(self, x: Array) -> Array:
        """Return the sum of x_j f_j, as its products."""
        return np.asarray(self.products_of_pairs @ x)

    def values(self, w: Array) -> Array:
        """Return f_j . w for every j: w itself."""
        return w

    def products(self, x: Array) -> Array:
        """Return f_j . (sum of x_k f_k) for every j."""
        return self.combined(x)

    def gram(self, where: NDArray[np.int64]) -> Array:
        """Return f_j . f_k for these j and k."""
        return self.products_of_pairs[np.ix_(where, where)]

    def columns(self, where: NDArray[np.int64]) -> Array:
        """Return these vectors as columns, from a root of their products, which halves the digits of short ones."""
        squares, basis = np.linalg.eigh(self.gram(where))
        return np.asarray(np.sqrt(np.maximum(squares, 0))[:, None] * basis.T)


EPSILON = float(np.finfo(np.float64).eps)
FIRST, ADDED = 400, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastDistance:
    """The multipliers of the shortest w; if no w exists, weights u with sum u f = 0 and b.u = 1."""

    weights: Array
    exists: bool


def least_distance(
    rows: UnitRows, bound: Array, *, free: NDArray[np.bool_] | None = None, guess: Array, fraction: float = 1.0
) -> LeastDistance | None:
    """Solve the problem of the module's docstring, with f.w = b where free; None if least squares do not converge.

    bound: b, scaled so that w is about as long as the f_j
    guess: the vectors with the largest entries here are tried first
    fraction: stop at a w that satisfies this fraction of the bounds
    """
    equal = np.zeros(rows.size, dtype=bool) if free is None else free
    order = np.argsort(-np.abs(guess), kind="stable")
    where = np.union1d(order[:FIRST], np.flatnonzero(equal))
    while True:
        solution = _solve_subset(rows.columns(where), bound[where], equal[where])
        if solution is None:
            return None
        weights = np.zeros(rows.size)
        weights[where] = solution.weights
        if not solution.exists:
            return LeastDistance(weights=weights, exists=False)
        w = rows.combined(weights)
        missing = fraction * bound - rows.values(w)
        failing = (missing >= 64 * EPSILON * np.linalg.norm(w)) & ~equal
        failing[where] = False
        if not failing.any():
            return LeastDistance(weights=weights, exists=True)
        worst = np.flatnonzero(failing)
        where = np.union1d(where, worst[np.argsort(-missing[worst], kind="stable")[:ADDED]])


def _solve_subset(columns: Array, bound: Array, equal: NDArray[np.bool_]) -> LeastDistance | None:
    """Solve the problem for a subset of the vectors."""
    if len(bound) == 0:  # scipy's nnls frees its memory twice
        return LeastDistance(weights=np.zeros(0), exists=True)
    system = np.vstack([columns, bound])
    if not np.isfinite(system).all():
        raise InputError("expected finite vectors and bounds; got NaN or infinity")
    system = np.hstack([system, -system[:, equal]])
    target = np.zeros(len(system))
    target[-1] = 1.0
    try:
        weights, residual = optimize.nnls(system, target, maxiter=30 * system.shape[1])
    except RuntimeError:
        return None
    count = len(bound)
    signed = weights[:count].copy()
    signed[equal] -= weights[count:]
    remainder = 1 - float(bound @ signed)
    if residual <= 64 * EPSILON * np.sqrt(len(system)) or remainder <= 0:
        return LeastDistance(weights=signed, exists=False)
    return LeastDistance(weights=signed / remainder, exists=True)
