r"""Whether any matrix selects the tokens, decided exactly.

No W has :math:`\langle A_j, W\rangle > 0` for all j just if zero is a convex combination of the A_j. With rows of
length one that is a question of least distances: whether there is a W with :math:`\langle A_j, W\rangle \ge 1`. If
not, the weights of the combination name the tokens that contradict each other, and they do not without any one of them.
"""

import numpy as np

from clearhead.numerics.least_distance import least_distance
from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints, Indices, UnitConstraints
from clearhead.theories.max_margin.svm.frobenius import Least
from clearhead.theories.max_margin.svm.solution import Conflict

__all__ = ["conflict_of_void", "decide"]

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
    lengths, equal = constraints.units, constraints.equal
    found = least_distance(
        UnitConstraints(constraints), np.where(equal, 0.0, 1.0), free=equal, guess=guess * lengths, enough=0.0
    )
    if found is None:
        return None
    multipliers = found.weights / lengths
    if not found.exists:
        return _conflict(constraints, multipliers)
    return Least(constraints.combined(multipliers), multipliers, converged=False)


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
