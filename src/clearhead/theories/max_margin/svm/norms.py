r"""The attention SVM of least nuclear norm, and that of least max-entry norm.

The first is found by Douglas-Rachford splitting,

.. math:: V = \mathrm{shrink}_\tau(S), \qquad P = \mathrm{nearest}(2V - S), \qquad S \leftarrow S + \omega (P - V),

where shrink subtracts tau from every singular value and nearest is the nearest matrix that satisfies the constraints, a
Frobenius problem that starts from the multipliers of the previous iteration (Lions and Mercier 1979; over-relaxed as in
Eckstein and Bertsekas 1992). At a fixed point V = P is the solution, and the multipliers of the projection prove it.
They bound the margin at every iteration, converged or not.

The second, :math:`\max_{ab} |W_{ab}|`, is a linear program,

.. math:: \max_{W, g, s} s \quad\text{s.t.}\quad |W_{ab}| \le 1, \quad g_i = W z_i, \quad \delta_{it} \cdot g_i \ge s.

The products g_i = W z_i are variables too, so that the program has n d e + m d coefficients for m constraints instead
of m d e. s is the margin, and the dual variables of the constraints are the multipliers that prove it. The solver is
the interior-point method of HiGHS (Huangfu and Hall 2018).
"""

from dataclasses import replace

import numpy as np
from scipy import linalg, optimize, sparse

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, Projection
from clearhead.theories.max_margin.svm.solution import Norm, bracket

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


MAX_COEFFICIENTS = 2_000_000
"""Size of the largest program accepted. 100 sequences of 64 tokens of width 64 have 0.8 million coefficients, and take
40 seconds and 0.4 GB on one core."""
FEASIBILITY = 1e-10
"""The smallest tolerance that HiGHS accepts."""


def least_max_entry(constraints: Constraints, least: LeastNorm, *, tolerance: float) -> LeastNorm:
    """Return the matrix of least max-entry norm, given any matrix `least` that satisfies the constraints.

    It has converged if the bounds on its margin are within the tolerance. If the solver fails, return `least`.
    """
    rows = constraints
    (n, e), d = rows.z.shape, rows.delta.shape[1]
    coefficients = n * d * e + rows.count * d
    if coefficients > MAX_COEFFICIENTS:
        raise InputError(
            f"the max-entry norm for {n} sequences, {rows.count} constraints and widths {d} and {e} needs a linear "
            f"program of {coefficients:,} coefficients; at most {MAX_COEFFICIENTS:,} are allowed. Use fewer sequences "
            "or tokens, or another norm"
        )
    attained = bracket(rows, least.W, least.multipliers, Norm.MAX_ENTRY).low
    options = {"primal_feasibility_tolerance": FEASIBILITY, "dual_feasibility_tolerance": FEASIBILITY}
    program = optimize.linprog(**_program(rows, attained), method="highs-ipm", options=options)
    if program.x is None:
        return LeastNorm(least.W, least.multipliers, converged=False)
    multipliers = np.zeros(rows.count)
    multipliers[~rows.equal] = np.maximum(-program.ineqlin.marginals, 0)
    multipliers[rows.equal] = program.eqlin.marginals[n * d :]
    W, multipliers = program.x[: d * e].reshape(d, e), multipliers / rows.units
    margin = bracket(rows, W, multipliers, Norm.MAX_ENTRY)
    return LeastNorm(W, multipliers, converged=margin.high - margin.low <= tolerance * margin.high)


def _program(rows: Constraints, attained: float) -> dict[str, object]:
    """Return the arguments of `linprog`, with constraints of length one and s in units of an attained margin.

    The solver's tolerances are absolute; this scaling makes them relative, however close two tokens are.
    """
    (n, e), (m, d) = rows.z.shape, rows.delta.shape
    queries, directions = _directions(rows.z), _directions(rows.delta)
    # Columns: W row by row; then g, coordinate by coordinate, each for all sequences; then s.
    products = sparse.hstack(
        [sparse.kron(sparse.identity(d), queries), -sparse.identity(n * d), sparse.csr_array((n * d, 1))]
    )
    column = d * e + np.arange(d) * n + rows.sequence[:, None]
    scores = sparse.csr_array(
        (directions.ravel(), (np.repeat(np.arange(m), d), column.ravel())), shape=(m, d * e + n * d + 1)
    )
    margin = sparse.csr_array((attained / rows.units, (np.arange(m), np.full(m, d * e + n * d))), shape=scores.shape)
    inequality, equal = np.flatnonzero(~rows.equal), np.flatnonzero(rows.equal)
    cost, high = np.zeros(d * e + n * d + 1), np.full(d * e + n * d + 1, np.inf)
    cost[-1], high[: d * e] = -1, 1
    low = -high
    low[-1] = 0
    return {
        "c": cost,
        "A_ub": (margin - scores).tocsr()[inequality],
        "b_ub": np.zeros(len(inequality)),
        "A_eq": sparse.vstack([products, scores[equal]]).tocsr(),
        "b_eq": np.zeros(n * d + len(equal)),
        "bounds": np.stack([low, high], axis=1),
    }


def _directions(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
