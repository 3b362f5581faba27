r"""The attention SVM of least nuclear norm among matrices of bounded rank, solved locally for factors W = K Q^T.

.. math:: \min_{K, Q} \tfrac12 (\|K\|_F^2 + \|Q\|_F^2) \quad\text{s.t.}\quad \langle A_j, K Q^T\rangle \ge 1,

The least value over all factors of the same W is its nuclear norm. An augmented Lagrangian (Powell 1969, Rockafellar
1973) finds factors that nearly satisfy the constraints. Then K and Q are optimised alternately; each is a Frobenius
problem and solved exactly. The whole problem is not convex: there are several starts, and the solution is local.
"""

from dataclasses import replace

import numpy as np
from scipy import linalg, optimize

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, least_frobenius

__all__ = ["least_nuclear_of_rank", "truncated"]

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
