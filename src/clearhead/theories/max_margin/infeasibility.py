r"""Whether any matrix selects the tokens, decided exactly.

No W has :math:`\langle A_j, W\rangle > 0` for all j just if zero is a convex combination of the A_j. That is a least
squares problem over weights that are not negative (Lawson and Hanson 1974, chapter 23): with rows of length one,
minimise :math:`|\sum_j u_j A_j|^2 + (1 - \sum_j u_j)^2` over :math:`u \ge 0`. The residual is zero just if there is no
W, and the weights then name the tokens that contradict each other; otherwise it gives a W.

Rows are taken as they are needed: those that the W of the rows so far does not satisfy join them.
"""

import numpy as np
from scipy import linalg, optimize

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.constraints import Constraints, Indices
from clearhead.theories.max_margin.frobenius import Least
from clearhead.theories.max_margin.solution import Conflict

__all__ = ["conflict_of_void", "decide"]

EPSILON = float(np.finfo(np.float64).eps)
FIRST_ROWS, ADDED_ROWS = 400, 200
NEGLIGIBLE = 1e-13
"""Weights that are rounding errors of larger ones."""


def conflict_of_void(constraints: Constraints, selected: Indices) -> Conflict | None:
    """A constraint that no W can meet alone: a copy of the selected token, or a query of zeros."""
    void = np.flatnonzero((constraints.lengths == 0) & ~constraints.equal)
    if not len(void):
        return None
    pairs = tuple((int(constraints.sequence[j]), int(constraints.token[j])) for j in void)
    i, t = pairs[0]
    zero_query = not constraints.z[i].any()
    because = (
        f"the query of sequence {i} is zero"
        if zero_query
        else f"token {t} of sequence {i} is a copy of the selected token {int(selected[i])}"
    )
    return Conflict(tokens=pairs, weights=(1 / len(pairs),) * len(pairs), residual=0.0, reason=because)


def decide(constraints: Constraints, guess: Array) -> Conflict | Least | None:
    """A conflict, or a matrix that separates, not the one of least norm; None where the least squares do not end.

    `guess`: multipliers, of which the largest are looked at first: they grow without bound where there is a conflict.
    """
    lengths = np.where(constraints.lengths > 0, constraints.lengths, 1.0)
    order = np.argsort(-np.abs(guess * lengths), kind="stable")
    rows = np.union1d(order[:FIRST_ROWS], np.flatnonzero(constraints.equal))
    while True:
        found = _among(constraints.at(rows))
        if found is None or isinstance(found, Conflict):
            return found
        multipliers = np.zeros(constraints.count)
        multipliers[rows] = found
        W = constraints.combined(multipliers)
        failing = (constraints.values(W) <= 0) & ~constraints.equal
        failing[rows] = False
        if not failing.any():
            return Least(W, multipliers, converged=False)
        worst = np.flatnonzero(failing)
        worst = worst[np.argsort((constraints.values(W) / lengths)[worst], kind="stable")[:ADDED_ROWS]]
        rows = np.union1d(rows, worst)


def _among(constraints: Constraints) -> Conflict | Array | None:
    """The same for a few rows: a conflict, or multipliers of a W."""
    equal, lengths = constraints.equal, constraints.lengths
    lengths = np.where(lengths > 0, lengths, 1.0)
    columns = _columns(constraints) / lengths
    system = np.vstack([columns, np.where(equal, 0.0, 1.0)])
    system = np.hstack([system, -system[:, equal]])
    wanted = np.zeros(len(system))
    wanted[-1] = 1.0
    try:
        weights, residual = optimize.nnls(system, wanted, maxiter=30 * system.shape[1])
    except RuntimeError:
        return None
    signed = weights[: constraints.count].copy()
    signed[equal] -= weights[constraints.count :]
    if residual <= 64 * EPSILON * np.sqrt(len(system)):
        return _conflict(constraints, signed / lengths)
    return np.asarray(signed / lengths)


def _columns(constraints: Constraints) -> Array:
    """The A_j as columns, in coordinates of what they span: at most as many as there are rows."""
    left = linalg.qr(constraints.delta.T, mode="r")[0][: min(constraints.delta.shape)].T
    used, place = np.unique(constraints.sequence, return_inverse=True)
    z = constraints.z[used]
    right = linalg.qr(z.T, mode="r")[0][: min(z.shape)].T[place]
    columns = np.einsum("ja,jb->abj", left, right).reshape(-1, constraints.count)
    if len(columns) > constraints.count:
        columns = linalg.qr(columns, mode="r")[0][: constraints.count]
    return np.asarray(columns)


def _conflict(constraints: Constraints, weights: Array) -> Conflict:
    """In words; `weights` of the A_j as they are, whose weighted sum is zero."""
    must = ~constraints.equal
    share = np.where(must, weights * constraints.lengths, 0.0)
    share = np.where(share > NEGLIGIBLE * share.max(), share, 0.0)
    weights = np.where(must & (share == 0), 0.0, weights)
    total = float(share.sum())
    used = np.argsort(-share, kind="stable")[: int((share > 0).sum())]
    pairs = tuple((int(constraints.sequence[j]), int(constraints.token[j])) for j in used)
    named = ", ".join(f"token {t} of sequence {i}" for i, t in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return Conflict(
        tokens=pairs,
        weights=tuple(float(w) for w in share[used] / total),
        residual=float(np.linalg.norm(constraints.combined(weights))) / total,
        reason=f"these cannot all score below the selected tokens: {named}{more}",
    )
