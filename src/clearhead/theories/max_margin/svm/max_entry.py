r"""The attention SVM whose largest entry is least, as a linear program.

.. math:: \max_{W, g, s} s \quad\text{s.t.}\quad |W_{ab}| \le 1, \quad g_i = W z_i, \quad \delta_{it} \cdot g_i \ge s.

What W makes of a query, g_i, is a variable of its own: the program then has n d e + m d coefficients for m constraints,
and not m d e. s is the margin, and the prices of the constraints are the multipliers that prove it. Solved by the
interior points of HiGHS (Huangfu and Hall 2018).
"""

import numpy as np
from scipy import optimize, sparse

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import Least
from clearhead.theories.max_margin.svm.norms import bracket
from clearhead.theories.max_margin.svm.solution import Norm

__all__ = ["least_max_entry"]

LARGEST = 2_000_000
"""Coefficients of the largest program that is tried. 100 sequences of 64 tokens, 64 wide, have 0.8 million, and take
40 seconds and 0.4 GB on one core."""
FEASIBILITY = 1e-10
"""The narrowest tolerance that HiGHS takes."""


def least_max_entry(constraints: Constraints, least: Least, *, tolerance: float) -> Least:
    """The matrix whose largest entry is least, from any matrix that meets the constraints.

    It has converged if the bracket of its margin is as narrow as the tolerance; where the program does not end, it is
    the matrix that was given.
    """
    rows = constraints
    (n, e), d = rows.z.shape, rows.delta.shape[1]
    coefficients = n * d * e + rows.count * d
    if coefficients > LARGEST:
        raise InputError(
            f"the max-entry norm of {n} sequences, {rows.count} tokens, widths {d} and {e} needs a linear program of "
            f"{coefficients:,} coefficients, more than {LARGEST:,}; take fewer sequences or tokens, or another norm"
        )
    known = bracket(rows, least.W, least.multipliers, Norm.MAX_ENTRY).low
    narrow = {"primal_feasibility_tolerance": FEASIBILITY, "dual_feasibility_tolerance": FEASIBILITY}
    found = optimize.linprog(**_program(rows, known), method="highs-ipm", options=narrow)
    if found.x is None:
        return Least(least.W, least.multipliers, converged=False)
    multipliers = np.zeros(rows.count)
    multipliers[~rows.equal] = np.maximum(-found.ineqlin.marginals, 0)
    multipliers[rows.equal] = found.eqlin.marginals[n * d :]
    W, multipliers = found.x[: d * e].reshape(d, e), multipliers / rows.units
    margin = bracket(rows, W, multipliers, Norm.MAX_ENTRY)
    return Least(W, multipliers, converged=margin.high - margin.low <= tolerance * margin.high)


def _program(rows: Constraints, known: float) -> dict[str, object]:
    """The program with rows of length one and s in units of a margin that is known to be reached.

    Tolerances of the solver are absolute: so scaled, they are relative ones, however near two tokens are.
    """
    (n, e), (m, d) = rows.z.shape, rows.delta.shape
    queries, directions = _directions(rows.z), _directions(rows.delta)
    # Columns: W by rows; then g, of all sequences for its first coordinate, and so on; then s.
    made = sparse.hstack(
        [sparse.kron(sparse.identity(d), queries), -sparse.identity(n * d), sparse.csr_array((n * d, 1))]
    )
    place = d * e + np.arange(d) * n + rows.sequence[:, None]
    scores = sparse.csr_array(
        (directions.ravel(), (np.repeat(np.arange(m), d), place.ravel())), shape=(m, d * e + n * d + 1)
    )
    margin = sparse.csr_array((known / rows.units, (np.arange(m), np.full(m, d * e + n * d))), shape=scores.shape)
    must, equal = np.flatnonzero(~rows.equal), np.flatnonzero(rows.equal)
    cost, high = np.zeros(d * e + n * d + 1), np.full(d * e + n * d + 1, np.inf)
    cost[-1], high[: d * e] = -1, 1
    low = -high
    low[-1] = 0
    return {
        "c": cost,
        "A_ub": (margin - scores).tocsr()[must],
        "b_ub": np.zeros(len(must)),
        "A_eq": sparse.vstack([made, scores[equal]]).tocsr(),
        "b_eq": np.zeros(n * d + len(equal)),
        "bounds": np.stack([low, high], axis=1),
    }


def _directions(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
