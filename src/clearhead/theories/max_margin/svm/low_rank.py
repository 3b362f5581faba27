r"""The attention SVM of least nuclear norm among matrices of bounded rank, solved locally in factors W = K Q^T.

.. math:: \min_{K, Q} \tfrac12 (\|K\|_F^2 + \|Q\|_F^2) \quad\text{s.t.}\quad \langle A_j, K Q^T\rangle \ge 1,

whose least value over the factors of one W is its nuclear norm. An augmented Lagrangian (Powell 1969, Rockafellar 1973)
finds factors that nearly meet the constraints; then K and Q are solved for in turn, exactly, as each is a Frobenius
problem. The problem is not convex: there are several starts, and the answer is a local one.
"""

from dataclasses import replace

import numpy as np
from scipy import linalg, optimize

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.frobenius import Least, least_frobenius

__all__ = ["least_nuclear_of_rank", "truncated"]

DRAWN_STARTS = 2
PASSES, STEPS, MEMORY = 20, 150, 20
PENALTY_GROWTH, PROGRESS, MET = 4.0, 0.25, 1e-6
"""The penalty grows unless what is missing shrank to a quarter; the passes end when no more than the last is."""
TURNS, GAIN = 30, 1e-9


def truncated(W: Array, rank: int) -> Array:
    """The nearest matrix of that rank."""
    K, Q = _factors(W, rank)
    return K @ Q.T


def least_nuclear_of_rank(constraints: Constraints, least: Least, rank: int, *, seed: int = 0) -> Array | None:
    """A matrix of at most that rank that meets the constraints, locally of least nuclear norm; None if none was found.

    `least` is the answer without the bound. Where the steps lead is decided by the multipliers they begin with: those
    of that answer, none, and drawn ones.
    """
    unit = float(np.linalg.norm(least.W, "nuc"))
    rows = replace(constraints, delta=constraints.delta * unit)
    known = least.multipliers / np.linalg.norm(rows.combined(least.multipliers), 2)
    K, Q = _factors(least.W / unit, rank)
    starts = [(K, Q, known), (K, Q, 0 * known)]
    generator = np.random.default_rng(seed)
    for _ in range(DRAWN_STARTS):
        K, Q = (generator.standard_normal(factor.shape) / np.sqrt(factor.size) for factor in (K, Q))
        starts.append((K, Q, known * generator.uniform(0, 2, rows.count)))
    found = [_in_turn(rows, *_nearly(rows, *start)) for start in starts]
    separating = [W for W in found if W is not None]
    return min(separating, key=lambda W: float(np.linalg.norm(W, "nuc"))) * unit if separating else None


def _factors(W: Array, rank: int) -> tuple[Array, Array]:
    """K and Q, alike in size, whose product is the matrix of that rank nearest to W."""
    U, values, Vt = linalg.svd(W, full_matrices=False, check_finite=False)
    roots = np.sqrt(values[:rank])
    return U[:, :rank] * roots, Vt[:rank].T * roots


def _nearly(rows: Constraints, K: Array, Q: Array, multipliers: Array) -> tuple[Array, Array, Array]:
    """Factors that nearly meet the constraints, and their multipliers, by the augmented Lagrangian over rows of length
    one."""
    lengths, split = rows.units, K.size

    def factors(x: Array) -> tuple[Array, Array]:
        return x[:split].reshape(K.shape), x[split:].reshape(Q.shape)

    def lagrangian(x: Array, weights: Array, penalty: float) -> tuple[float, Array]:
        left, right = factors(x)
        missing = (1 - rows.values(left @ right.T)) / lengths
        raised = np.maximum(weights + penalty * missing, 0)
        pull = rows.by_sequence(raised / lengths)
        slope = np.concatenate([(left - pull.T @ (rows.z @ right)).ravel(), (right - rows.z.T @ (pull @ left)).ravel()])
        return float(x @ x + (raised @ raised - weights @ weights) / penalty) / 2, slope

    x, weights = np.concatenate([K.ravel(), Q.ravel()]), multipliers * lengths
    penalty, before = 1.0, np.inf
    for _ in range(PASSES):
        options = {"maxiter": STEPS, "maxcor": MEMORY}
        x = optimize.minimize(lagrangian, x, (weights, penalty), method="L-BFGS-B", jac=True, options=options).x
        left, right = factors(x)
        missing = 1 - rows.values(left @ right.T)
        raised = np.maximum(weights + penalty * missing / lengths, 0)
        change = float(np.abs(raised - weights).max()) / penalty
        weights = raised
        if missing.max() <= MET and change <= MET:
            break
        penalty *= PENALTY_GROWTH if change > PROGRESS * before else 1.0
        before = min(before, change)
    return *factors(x), weights / lengths


def _in_turn(rows: Constraints, K: Array, Q: Array, multipliers: Array) -> Array | None:
    """K Q^T, scaled to meet the constraints, after solving for K, for Q, and so on, while that gains; None if it does
    not separate."""
    rank, W = K.shape[1], K @ Q.T
    least = float(rows.values(W).min())
    best, size = (W / least, float(np.linalg.norm(W, "nuc")) / least) if least > 0 else (None, np.inf)
    for _ in range(TURNS):
        left = least_frobenius(replace(rows, z=rows.z @ Q), start=multipliers)
        if not left.converged:
            break
        K, Q = _factors(left.W @ Q.T, rank)
        right = least_frobenius(replace(rows, delta=rows.delta @ K), start=left.multipliers)
        if not right.converged:
            break
        W, multipliers = K @ right.W, right.multipliers
        now = float(np.linalg.norm(W, "nuc"))
        if now >= size * (1 - GAIN):
            break
        best, size = W, now
        K, Q = _factors(W, rank)
    return best
