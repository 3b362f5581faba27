r"""The attention SVM: the matrix of least norm whose scores select given tokens (Tarzanagh et al. 2023).

.. math:: W^{mm}_\alpha = \arg\min \|W\| \quad\text{s.t.}\quad
          (x_{i\alpha_i} - x_{it})^T W z_i \ge 1 \;\text{ for all } i,\ t \ne \alpha_i.

X_i in R^{T x d} are the tokens of sequence i, z_i is its query and alpha_i its selected token. Token t has the score
x_it^T W z_i, so W = W_k^T W_q, keys on the left. With the Frobenius norm this is the paper's (Att-SVM), with the
nuclear norm (Att-SVM_*).

Among matrices of bounded rank, that of least nuclear norm is solved locally for factors W = K Q^T.

.. math:: \min_{K, Q} \tfrac12 (\|K\|_F^2 + \|Q\|_F^2) \quad\text{s.t.}\quad \langle A_j, K Q^T\rangle \ge 1,

The least value over all factors of the same W is its nuclear norm. An augmented Lagrangian (Powell 1969, Rockafellar
1973) finds factors that nearly satisfy the constraints. Then K and Q are optimised alternately; each is a Frobenius
problem and solved exactly. The whole problem is not convex: there are several starts, and the solution is local.
"""

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Bool, Float, Int
from clearhead.theories.max_margin.svm.constraints import Constraints, selection_constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, decide, least_frobenius, zero_constraint_conflict
from clearhead.theories.max_margin.svm.norms import least_max_entry, least_nuclear
from clearhead.theories.max_margin.svm.solution import (
    Conflict,
    MarginWarning,
    MaxMargin,
    Norm,
    bracket,
    certified_solution,
    infeasible_solution,
    trivial_solution,
    unfound_solution,
)

RANDOM_STARTS = 2
PASSES, STEPS, MEMORY = 20, 150, 20
PENALTY_GROWTH, PROGRESS, FEASIBILITY = 4.0, 0.25, 1e-6
"""The penalty grows unless the violation falls to a quarter; the passes end when it is at most `FEASIBILITY`."""
ALTERNATIONS, LEAST_GAIN = 30, 1e-9


def truncated(W: Array, rank: int) -> Array:
    """Return the matrix of at most this rank that is nearest to W."""
    K, Q = _factors(W, rank)
    return K @ Q.T


def least_nuclear_of_rank(constraints: Constraints, least: LeastNorm, rank: int, *, seed: int = 0) -> Array | None:
    """Return a feasible matrix of at most this rank whose nuclear norm is a local minimum; None if none was found.

    `least` is the solution without the bound. The starts differ in their multipliers, which decide where the iteration
    leads: those of `least`, zero, and random ones.
    """
    unit = float(np.linalg.norm(least.W, "nuc"))
    rows = replace(constraints, delta=constraints.delta * unit)
    multipliers = least.multipliers / np.linalg.norm(rows.combined(least.multipliers), 2)
    K, Q = _factors(least.W / unit, rank)
    starts = [(K, Q, multipliers), (K, Q, 0 * multipliers)]
    generator = np.random.default_rng(seed)
    for _ in range(RANDOM_STARTS):
        K, Q = (generator.standard_normal(factor.shape) / np.sqrt(factor.size) for factor in (K, Q))
        starts.append((K, Q, multipliers * generator.uniform(0, 2, rows.count)))
    matrices = [_alternate(rows, *_augmented_lagrangian(rows, *start)) for start in starts]
    separating = [W for W in matrices if W is not None]
    return min(separating, key=lambda W: float(np.linalg.norm(W, "nuc"))) * unit if separating else None


def _factors(W: Array, rank: int) -> tuple[Array, Array]:
    """Return balanced K and Q whose product is the matrix of this rank that is nearest to W."""
    U, values, Vt = linalg.svd(W, full_matrices=False, check_finite=False)
    roots = np.sqrt(values[:rank])
    return U[:, :rank] * roots, Vt[:rank].T * roots


def _augmented_lagrangian(rows: Constraints, K: Array, Q: Array, multipliers: Array) -> tuple[Array, Array, Array]:
    """Return factors that nearly satisfy the constraints, scaled to length one, and their multipliers."""
    lengths, split = rows.units, K.size

    def factors(x: Array) -> tuple[Array, Array]:
        return x[:split].reshape(K.shape), x[split:].reshape(Q.shape)

    def lagrangian(x: Array, weights: Array, penalty: float) -> tuple[float, Array]:
        left, right = factors(x)
        violation = (1 - rows.values(left @ right.T)) / lengths
        updated = np.maximum(weights + penalty * violation, 0)
        sums = rows.by_sequence(updated / lengths)
        of_left, of_right = left - sums.T @ (rows.z @ right), right - rows.z.T @ (sums @ left)
        gradient = np.concatenate([of_left.ravel(), of_right.ravel()])
        return float(x @ x + (updated @ updated - weights @ weights) / penalty) / 2, gradient

    x, weights = np.concatenate([K.ravel(), Q.ravel()]), multipliers * lengths
    penalty, before = 1.0, np.inf
    for _ in range(PASSES):
        options = {"maxiter": STEPS, "maxcor": MEMORY}
        x = optimize.minimize(lagrangian, x, (weights, penalty), method="L-BFGS-B", jac=True, options=options).x
        left, right = factors(x)
        violation = 1 - rows.values(left @ right.T)
        updated = np.maximum(weights + penalty * violation / lengths, 0)
        change = float(np.abs(updated - weights).max()) / penalty
        weights = updated
        if violation.max() <= FEASIBILITY and change <= FEASIBILITY:
            break
        penalty *= PENALTY_GROWTH if change > PROGRESS * before else 1.0
        before = min(before, change)
    return *factors(x), weights / lengths


def _alternate(rows: Constraints, K: Array, Q: Array, multipliers: Array) -> Array | None:
    """Optimise K and Q alternately while the norm falls; return K Q^T, scaled to satisfy the constraints.

    Return None if it does not separate.
    """
    rank, W = K.shape[1], K @ Q.T
    least = float(rows.values(W).min())
    best, size = (W / least, float(np.linalg.norm(W, "nuc")) / least) if least > 0 else (None, np.inf)
    for _ in range(ALTERNATIONS):
        left = least_frobenius(replace(rows, z=rows.z @ Q), start=multipliers)
        if not left.converged:
            break
        K, Q = _factors(left.W @ Q.T, rank)
        right = least_frobenius(replace(rows, delta=rows.delta @ K), start=left.multipliers)
        if not right.converged:
            break
        W, multipliers = K @ right.W, right.multipliers
        norm = float(np.linalg.norm(W, "nuc"))
        if norm >= size * (1 - LEAST_GAIN):
            break
        best, size = W, norm
        K, Q = _factors(W, rank)
    return best


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
