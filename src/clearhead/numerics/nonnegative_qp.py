r"""Quadratic programs over multipliers that must not be negative.

.. math:: \min_x \tfrac12 x^T K x - b^T x, \qquad x_j \ge 0 \text{ unless } j \text{ is free},

K positive semi-definite with a diagonal of ones. Accelerated projected gradients (Beck and Teboulle 2009, restarted as
in O'Donoghue and Candes 2015) guess which multipliers are positive; a primal-dual active set (Hintermueller, Ito and
Kunisch 2003) then solves for these exactly, and corrects the guess until the conditions of optimality hold to rounding.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from clearhead.numerics.moments import Array

__all__ = ["DenseQuadratic", "NonnegativeQP", "Quadratic", "QuadraticSolution", "nonnegative_qp"]

EPSILON = float(np.finfo(np.float64).eps)
FIRST_STEPS, ROUNDS, EXCHANGES = 25, 6, 12
REFINEMENTS = 4
UNBOUNDED = 1e-6
"""Rounding of the slope, relative to the linear term, beyond which multipliers are taken to grow without bound."""
RIDGE_GROWTH, RIDGES = 100.0, 4
LARGEST = 5000
"""Rows of the largest block that is factored: it takes 200 MB, and as much again beside it."""
CROWDED = 2
"""Rounds of descent in a row whose guess has more than twice as many rows as the matrix has rank: nearly always the
program has no lowest value then, and more steps would not show it."""


@runtime_checkable
class Quadratic(Protocol):
    """A positive semi-definite matrix with ones on its diagonal, which need not be stored."""

    @property
    def size(self) -> int:
        """How many rows it has."""

    @property
    def rank(self) -> int:
        """A bound on its rank."""

    def times(self, x: Array) -> Array:
        """K x."""

    def block(self, where: NDArray[np.int64]) -> Array:
        """The rows and columns of these indices."""


@dataclass(frozen=True, slots=True)
class DenseQuadratic:
    """A stored matrix."""

    matrix: Array

    @property
    def size(self) -> int:
        """How many rows it has."""
        return len(self.matrix)

    @property
    def rank(self) -> int:
        """A bound on its rank."""
        return len(self.matrix)

    def times(self, x: Array) -> Array:
        """K x."""
        product: Array = self.matrix @ x
        return product

    def block(self, where: NDArray[np.int64]) -> Array:
        """The rows and columns of these indices."""
        return self.matrix[np.ix_(where, where)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticSolution:
    """The multipliers, and whether they meet the conditions of optimality to rounding.

    Without convergence they are the last iterate, not negative where they must not be. A program without a lowest value
    does not converge, and its multipliers grow.
    """

    x: Array
    converged: bool


def nonnegative_qp(
    quadratic: Quadratic, linear: Array, *, free: NDArray[np.bool_] | None = None, start: Array | None = None
) -> QuadraticSolution:
    """Solve the program of the module's docstring. `start` is a guess whose positive entries are tried first."""
    return NonnegativeQP(quadratic, free=free).solve(linear, start=start)


class NonnegativeQP:
    """Programs that differ in their linear term alone: what was factored for one is used for the next."""

    def __init__(self, quadratic: Quadratic, *, free: NDArray[np.bool_] | None = None) -> None:
        self._quadratic = quadratic
        self._bound = ~free if free is not None else np.ones(quadratic.size, dtype=bool)
        self._factor: _Factor | None = None

    def solve(self, linear: Array, *, start: Array | None = None) -> QuadraticSolution:
        """As `nonnegative_qp`."""
        if start is not None:
            tried = self._exchange(linear, start > 0)
            if tried is not None:
                return QuadraticSolution(x=tried, converged=True)
        descent = _Descent(self._quadratic, linear, self._bound, np.zeros(len(linear)) if start is None else start)
        crowded = 0
        for turn in range(ROUNDS):
            guess = descent.run(FIRST_STEPS * 2**turn)
            if int(guess.sum()) > 2 * self._quadratic.rank:
                crowded += 1
                if crowded == CROWDED:
                    break
                continue
            exact = self._exchange(linear, guess)
            if exact is not None:
                return QuadraticSolution(x=exact, converged=True)
        return QuadraticSolution(x=descent.x, converged=False)

    def _exchange(self, linear: Array, positive: NDArray[np.bool_]) -> Array | None:
        """Solve for the positive multipliers as if the others were zero, and exchange those of the wrong sign; None
        where that does not settle."""
        positive = positive | ~self._bound
        for _ in range(EXCHANGES):
            where = np.flatnonzero(positive)
            if len(where) > LARGEST:
                return None
            if self._factor is None or not np.array_equal(self._factor.where, where):
                self._factor = _Factor.of(self._quadratic, where)
            found = None if self._factor is None else self._factor.solve(self._quadratic, linear)
            if found is None:
                return None
            x, slope = found
            # Entries of K are at most one, so the rounding of a slope is at most that of the sum of multipliers.
            largest = float(np.abs(linear).max(initial=0.0))
            rounding = 64 * EPSILON * (float(np.abs(x).sum()) + largest)
            if rounding > UNBOUNDED * largest:
                return None
            wrong = np.where(positive, self._bound & (x < 0), slope < -rounding)
            if not wrong.any():
                return x
            positive = positive ^ wrong
        return None


class _Descent:
    """Accelerated projected gradient steps that can be gone on with."""

    def __init__(self, quadratic: Quadratic, linear: Array, bound: NDArray[np.bool_], start: Array) -> None:
        self.x = start
        self._ahead, self._momentum = start, 1.0
        self._quadratic, self._linear, self._bound = quadratic, linear, bound
        self._length = 1 / _largest_eigenvalue(quadratic)

    def run(self, steps: int) -> NDArray[np.bool_]:
        """Take steps; which multipliers one more would leave positive."""
        for _ in range(steps):
            after = self._step(self._ahead)
            if (self._ahead - after) @ (after - self.x) > 0:
                self._momentum = 1.0
            momentum = (1 + np.sqrt(1 + 4 * self._momentum**2)) / 2
            self._ahead = after + (self._momentum - 1) / momentum * (after - self.x)
            self.x, self._momentum = after, momentum
        return self._step(self.x) > 0

    def _step(self, x: Array) -> Array:
        moved = x - (self._quadratic.times(x) - self._linear) * self._length
        return np.where(self._bound, np.maximum(moved, 0), moved)


def _largest_eigenvalue(quadratic: Quadratic, steps: int = 12) -> float:
    """From a dozen power steps, and a little more, as they approach it from below. The restarts forgive a low one."""
    x, value = np.ones(quadratic.size) / np.sqrt(quadratic.size), 1.0
    for _ in range(steps):
        y = quadratic.times(x)
        value = float(np.linalg.norm(y))
        if value == 0:
            x = np.random.default_rng(0).standard_normal(quadratic.size)
            value = float(np.linalg.norm(x))
            y = x
        x = y / value
    return 1.05 * value


@dataclass(frozen=True, slots=True)
class _Factor:
    """The Cholesky factor of some rows and columns.

    Equal rows make K singular without harm: a ridge chooses among their multipliers, and refinement takes back what it
    changed in the solution.
    """

    where: NDArray[np.int64]
    lower: Array

    @classmethod
    def of(cls, quadratic: Quadratic, where: NDArray[np.int64]) -> "_Factor | None":
        """None where K is too singular there."""
        block = quadratic.block(where)
        ridge = 4 * EPSILON * len(where)
        for _ in range(RIDGES):
            try:
                lower = linalg.cholesky(block + ridge * np.eye(len(where)), lower=True, check_finite=False)
                return cls(where, lower)
            except linalg.LinAlgError:
                ridge *= RIDGE_GROWTH
        return None

    def solve(self, quadratic: Quadratic, linear: Array) -> tuple[Array, Array] | None:
        """K x = b on these rows, zero elsewhere, with the slope K x - b; None where refinement does not settle."""
        where = self.where
        x, slope = np.zeros(quadratic.size), -linear
        if not len(where):
            return x, slope
        allowed = 16 * EPSILON * np.abs(linear).max()
        for _ in range(1 + REFINEMENTS):
            x[where] -= linalg.cho_solve((self.lower, True), slope[where], check_finite=False)
            slope = quadratic.times(x) - linear
            if not np.isfinite(slope).all():
                return None
            left = float(np.abs(slope[where]).max())
            if left <= allowed + 4 * EPSILON * float(np.abs(x).sum()):
                return x, slope
        return None
