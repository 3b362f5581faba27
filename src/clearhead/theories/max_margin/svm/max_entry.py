r"""The attention SVM of least max-entry norm, :math:`\max_{ab} |W_{ab}|`, as a linear program.

.. math:: \max_{W, g, s} s \quad\text{s.t.}\quad |W_{ab}| \le 1, \quad g_i = W z_i, \quad \delta_{it} \cdot g_i \ge s.

The products g_i = W z_i are variables too, so that the program has n d e + m d coefficients for m constraints instead
of m d e. s is the margin, and the dual variables of the constraints are the multipliers that prove it. The solver is
the interior-point method of HiGHS (Huangfu and Hall 2018).
"""

import numpy as np
from scipy import optimize, sparse

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.certificate import bracket
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm
from clearhead.theories.max_margin.svm.solution import Norm

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
