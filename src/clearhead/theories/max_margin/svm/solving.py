r"""The attention SVM: the matrix of least norm whose scores select given tokens (Tarzanagh et al. 2023).

.. math:: W^{mm}_\alpha = \arg\min \|W\| \quad\text{s.t.}\quad
          (x_{i\alpha_i} - x_{it})^T W z_i \ge 1 \;\text{ for all } i,\ t \ne \alpha_i.

X_i in R^{T x d} are the tokens of sequence i, z_i is its query and alpha_i its selected token. Token t has the score
x_it^T W z_i, so W = W_k^T W_q, keys on the left. With the Frobenius norm this is the paper's (Att-SVM), with the
nuclear norm (Att-SVM_*).
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Bool, Float, Int
from clearhead.theories.max_margin.svm.certificate import (
    certified_solution,
    infeasible_solution,
    trivial_solution,
    unfound_solution,
)
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, least_frobenius
from clearhead.theories.max_margin.svm.infeasibility import decide, zero_constraint_conflict
from clearhead.theories.max_margin.svm.low_rank import least_nuclear_of_rank, truncated
from clearhead.theories.max_margin.svm.max_entry import least_max_entry
from clearhead.theories.max_margin.svm.norms import bracket
from clearhead.theories.max_margin.svm.nuclear import least_nuclear
from clearhead.theories.max_margin.svm.selection import selection_constraints
from clearhead.theories.max_margin.svm.solution import Conflict, MarginWarning, MaxMargin, Norm

__all__ = ["attention_svm", "separate", "solve_constraints"]

TOLERANCE = {Norm.FROBENIUS: 1e-10, Norm.NUCLEAR: 1e-6, Norm.MAX_ENTRY: 1e-6}
"""Default tolerances: largest distance of the bounds on the margin, relative to the upper bound."""


def attention_svm(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"] | None,
    selected: Int[Tensor, "n"],
    *,
    mask: Bool[Tensor, "n t"] | None = None,
    norm: Norm | str = Norm.FROBENIUS,
    rank: int | None = None,
    tolerance: float | None = None,
) -> MaxMargin:
    """Solve the attention SVM in float64, whatever the dtype of the data.

    x, z: the tokens and the query of each sequence. For self-attention z = x[:, i], for cross-attention any z. Without
        z the unknown is a prompt p, (d, 1), and the scores are x p (Tarzanagh et al. 2023, arXiv 2306.13596)
    selected: the index of the token that each sequence selects
    mask: True for visible tokens; hidden ones (padding, later tokens of a causal model) have no constraint, and their
        contents do not matter
    norm: the norm to minimise; rank: an upper bound on the rank of W, for the nuclear norm only
    tolerance: largest distance of the bounds on the margin, relative to the upper bound
    """
    norm = Norm(norm)
    if rank is not None and (rank < 1 or norm is not Norm.NUCLEAR):
        raise InputError(f"expected rank >= 1 together with the nuclear norm; got rank {rank} with norm {norm}")
    constraints, chosen = selection_constraints(x, z, selected, mask=mask)
    shape = (x.shape[0], x.shape[1])
    with one_thread():
        solution = solve_constraints(
            constraints, chosen, shape, norm, TOLERANCE[norm] if tolerance is None else tolerance, rank
        )
    for remark in solution.remarks:
        warnings.warn(MarginWarning(remark), stacklevel=2)
    return solution


def solve_constraints(
    constraints: Constraints,
    chosen: NDArray[np.int64],
    shape: tuple[int, int],
    norm: Norm,
    tolerance: float,
    rank: int | None = None,
) -> MaxMargin:
    """Solve for given constraints; `chosen`, the selected tokens, and `shape`, (n, t), serve to name tokens."""
    if constraints.equal.all():
        return trivial_solution(constraints, shape, norm)
    least = zero_constraint_conflict(constraints, chosen) or separate(constraints)
    if isinstance(least, Conflict):
        return infeasible_solution(constraints, shape, norm, least)
    separates = constraints.values(least.W)[~constraints.equal].min() > 0
    if separates and norm is Norm.MAX_ENTRY:
        least = least_max_entry(constraints, least, tolerance=tolerance)
    elif separates and norm is Norm.NUCLEAR:
        least = least_nuclear(constraints, least, tolerance=tolerance)
        if rank is not None:
            return _solve_with_rank(constraints, shape, least, rank, tolerance)
    return certified_solution(constraints, shape, norm, least.W, least.multipliers, tolerance=tolerance)


def separate(constraints: Constraints) -> Conflict | LeastNorm:
    """Return the matrix of least Frobenius norm, or a conflict: feasibility does not depend on the norm.

    If neither can be computed, return a matrix that separates, otherwise the last one tried.
    """
    least = least_frobenius(constraints)
    if least.converged:
        return least
    decision = decide(constraints, least.multipliers)
    if decision is None or isinstance(decision, Conflict):
        return decision or least
    exact = least_frobenius(constraints, start=decision.multipliers)
    return exact if exact.converged else decision


def _solve_with_rank(
    constraints: Constraints, shape: tuple[int, int], least: LeastNorm, rank: int, tolerance: float
) -> MaxMargin:
    """Return `least` truncated to the rank if that is optimal, otherwise a local solution of that rank.

    The upper bound on the margin comes from `least` and holds for matrices of any rank.
    """
    W = truncated(least.W, rank)
    margin = bracket(constraints, W, least.multipliers, Norm.NUCLEAR)
    if margin.high - margin.low > tolerance * margin.high:
        local = least_nuclear_of_rank(constraints, least, rank)
        if local is None:
            remark = f"no separating matrix of rank {rank} was found, which does not prove that none exists; raise rank"
            return unfound_solution(constraints, shape, Norm.NUCLEAR, least.multipliers, remark)
        W = local
    return certified_solution(
        constraints, shape, Norm.NUCLEAR, W, least.multipliers, tolerance=tolerance, rank_bounded=True
    )
