r"""Quadratic programs over nonnegative multipliers.

.. math:: \min_x \tfrac12 |w|^2 - b^T x, \quad w = \sum_j x_j f_j, \qquad x_j \ge 0 \text{ unless } j \text{ is free},

for unit vectors f_j. It is the dual of the shortest w with :math:`f_j \cdot w \ge b_j`, or = where j is free.
Accelerated projected gradients (Beck and Teboulle 2009, restarted as in O'Donoghue and Candes 2015) estimate which
multipliers are positive; a primal-dual active set method (Hintermueller, Ito and Kunisch 2003) then solves for these
exactly and corrects the set until the optimality conditions hold to rounding.

Nearly parallel f_j need large multipliers for a w of moderate length. So w is stored with x and refined by the residual
of :math:`f_j \cdot w`: its accuracy then depends on its own length, not on that of x.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from clearhead.errors import InputError
from clearhead.numerics.least_distance import UnitRows, least_distance
from clearhead.numerics.moments import Array

EPSILON = float(np.finfo(np.float64).eps)
FIRST_STEPS, ROUNDS, FEW_ROUNDS = 25, 6, 3
"""Steps of the first round of descent, each round twice as long; rounds; rounds if least distances can follow."""
EXCHANGES, CHANCES = 20, 3
"""Exchanges of signs in all, and in a row without fewer wrong ones. After that only the last wrong sign is exchanged,
which terminates for independent vectors (Judice and Pires 1994)."""
REFINEMENTS = 8
RIDGE_GROWTH, RIDGES = 100.0, 4
LARGEST = 5000
"""Most multipliers to solve for at once: their matrix takes 200 MB, its factor another 200 MB."""
CROWDED = 2
"""Descent stops after this number of rounds with more positive multipliers than `SMALL` and than twice the rank: w
then nearly always grows without bound."""
SMALL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticSolution:
    """The multipliers x, their w, and whether they meet the optimality conditions to rounding.

    Without convergence they are the last iterate, nonnegative where required. An unbounded program does not converge,
    and its multipliers grow.
    """

    x: Array
    w: Array
    converged: bool


class NonnegativeQP:
    """Programs that differ in their linear term alone; a factor is reused for the next."""

    def __init__(self, rows: UnitRows, *, free: NDArray[np.bool_] | None = None) -> None:
        self._rows = rows
        self._bound = ~free if free is not None else np.ones(rows.size, dtype=bool)
        self._factor: _Factor | None = None

    def solve(self, linear: Array, *, start: Array | None = None) -> QuadraticSolution:
        """Solve the program of the module's docstring. Positive entries of `start`, an estimate, are tried first."""
        if not np.isfinite(linear).all():
            raise InputError("expected a finite linear term; got NaN or infinity")
        if start is not None:
            tried = self._exchange(linear, start > 0)
            if tried is not None:
                return tried
        descent = _Descent(self._rows, linear, self._bound, np.zeros(len(linear)) if start is None else start)
        crowded = 0
        small = self._rows.rank <= SMALL
        for turn in range(FEW_ROUNDS if small else ROUNDS):
            guess = descent.run(FIRST_STEPS * 2**turn)
            if int(guess.sum()) > max(2 * self._rows.rank, SMALL):
                crowded += 1
                if crowded == CROWDED:
                    break
                continue
            exact = self._exchange(linear, guess)
            if exact is not None:
                return exact
        last = QuadraticSolution(x=descent.x, w=self._rows.combined(descent.x), converged=False)
        return (self._slowly(linear, last) or last) if small else last

    def _slowly(self, linear: Array, last: QuadraticSolution) -> QuadraticSolution | None:
        """Solve by least distances, which are robust for few or nearly dependent vectors."""
        length, gained = float(np.linalg.norm(last.w)), float(linear @ last.x)
        unit = length / gained if gained > 0 else 1.0
        solution = least_distance(self._rows, linear * unit, free=~self._bound, guess=last.x)
        return self._exchange(linear, solution.weights > 0) if solution is not None and solution.exists else None

    def _exchange(self, linear: Array, positive: NDArray[np.bool_]) -> QuadraticSolution | None:
        """Solve for the positive multipliers with the others zero, and exchange those of the wrong sign.

        None if that does not converge.
        """
        positive = positive | ~self._bound
        largest = float(np.abs(linear).max(initial=0.0))
        fewest, chances = len(linear) + 1, CHANCES
        for _ in range(EXCHANGES):
            where = np.flatnonzero(positive)
            if len(where) > LARGEST:
                return None
            if self._factor is None or not np.array_equal(self._factor.where, where):
                self._factor = _Factor.of(self._rows, where)
            solution = None if self._factor is None else self._factor.solve(self._rows, linear)
            if solution is None:
                return None
            x, w, slope = solution
            rounding = 64 * EPSILON * (float(np.linalg.norm(w)) + largest)
            wrong = np.where(positive, self._bound & (x < 0), slope < -rounding)
            if not wrong.any():
                return QuadraticSolution(x=x, w=w, converged=True)
            count = int(wrong.sum())
            fewest, chances = (count, CHANCES) if count < fewest else (fewest, chances - 1)
            if chances < 0:
                wrong[: np.flatnonzero(wrong)[-1]] = False
            positive = positive ^ wrong
        return None


class _Descent:
    """Accelerated projected gradient descent that can be continued."""

    def __init__(self, rows: UnitRows, linear: Array, bound: NDArray[np.bool_], start: Array) -> None:
        self.x = start
        self._ahead, self._momentum = start, 1.0
        self._rows, self._linear, self._bound = rows, linear, bound
        self._length = 1 / _largest_eigenvalue(rows)

    def run(self, steps: int) -> NDArray[np.bool_]:
        """Take steps; return True for the multipliers that one more step would leave positive."""
        for _ in range(steps):
            after = self._step(self._ahead)
            if (self._ahead - after) @ (after - self.x) > 0:
                self._momentum = 1.0
            momentum = (1 + np.sqrt(1 + 4 * self._momentum**2)) / 2
            self._ahead = after + (self._momentum - 1) / momentum * (after - self.x)
            self.x, self._momentum = after, momentum
        return self._step(self.x) > 0

    def _step(self, x: Array) -> Array:
        moved = x - (self._rows.products(x) - self._linear) * self._length
        return np.where(self._bound, np.maximum(moved, 0), moved)


def _largest_eigenvalue(rows: UnitRows, steps: int = 12) -> float:
    """Estimate the largest eigenvalue of the Gram matrix by a dozen power steps, times 1.05 as these approach it from
    below. Restarts correct for an estimate that is too low."""
    x, value = np.ones(rows.size) / np.sqrt(max(rows.size, 1)), 1.0
    for _ in range(steps if rows.size else 0):
        y = rows.products(x)
        value = float(np.linalg.norm(y))
        if value == 0:
            x = np.random.default_rng(0).standard_normal(rows.size)
            value = float(np.linalg.norm(x))
            y = x
        x = y / value
    return 1.05 * value


@dataclass(frozen=True, slots=True)
class _Factor:
    """The Cholesky factor of the Gram matrix of some vectors.

    Equal vectors make it singular, so a ridge is added; refinement removes its effect on w.
    """

    where: NDArray[np.int64]
    lower: Array

    @classmethod
    def of(cls, rows: UnitRows, where: NDArray[np.int64]) -> "_Factor | None":
        """Factor the Gram matrix of these vectors; None if they are too dependent."""
        gram = rows.gram(where)
        ridge = 4 * EPSILON * len(where)
        for _ in range(RIDGES):
            gram.flat[:: len(where) + 1] += ridge
            try:
                return cls(where, linalg.cholesky(gram, lower=True, check_finite=False))
            except linalg.LinAlgError:
                ridge *= RIDGE_GROWTH
        return None

    def solve(self, rows: UnitRows, linear: Array) -> tuple[Array, Array, Array] | None:
        """Return x, zero for other vectors, w with f.w = b for these vectors, and f.w - b for all.

        None if refinement does not converge.
        """
        x, largest = np.zeros(rows.size), float(np.abs(linear).max(initial=0.0))
        w, slope = rows.combined(x), -linear
        for _ in range(1 + REFINEMENTS):
            left = float(np.abs(slope[self.where]).max(initial=0.0))
            if left <= 16 * EPSILON * (float(np.linalg.norm(w)) + largest):
                return x, w, slope
            step = np.zeros(rows.size)
            step[self.where] = linalg.cho_solve((self.lower, True), -slope[self.where], check_finite=False)
            x, w = x + step, w + rows.combined(step)
            slope = rows.values(w) - linear
            if not np.isfinite(slope).all():
                return None
        return None
