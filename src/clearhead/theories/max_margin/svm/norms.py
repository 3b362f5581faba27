r"""Matrix norms, their dual norms, and the bounds on a margin that a matrix and multipliers prove."""

import numpy as np

from clearhead.numerics.moments import Array, Interval
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.solution import Norm

__all__ = ["bracket", "dual_norm", "norm_of"]

EQUALITY_TOLERANCE = 1e-10
"""Largest violation of an equality, for a constraint and a W of length one."""


def norm_of(W: Array, norm: Norm) -> float:
    """Return the norm of W."""
    if norm is Norm.FROBENIUS:
        return float(np.linalg.norm(W))
    return float(np.linalg.norm(W, "nuc") if norm is Norm.NUCLEAR else np.abs(W).max(initial=0.0))


def dual_norm(W: Array, norm: Norm) -> float:
    """Return the dual norm: the largest inner product of W with a matrix of norm one."""
    if norm is Norm.FROBENIUS:
        return float(np.linalg.norm(W))
    return float(np.linalg.norm(W, 2) if norm is Norm.NUCLEAR else np.abs(W).sum())


def bracket(constraints: Constraints, W: Array, multipliers: Array, norm: Norm) -> Interval:
    r"""Return bounds on the margin: what W attains, and what the multipliers prove that no matrix exceeds.

    .. math:: \frac{\min_j \langle A_j, W\rangle}{\|W\|} \;\le\; \gamma \;\le\;
              \frac{\|\sum_j \lambda_j A_j\|_*}{\sum_j \lambda_j}

    Equalities enter neither the minimum nor the sum in the denominator; their multipliers may have any sign, and a W
    that violates them attains nothing. Negative multipliers of inequalities are set to zero, so the bounds hold for
    any arguments. If rounding makes the upper bound smaller than the lower by a few digits, both are the lower one.
    """
    inequality = ~constraints.equal
    multipliers = np.where(inequality, np.maximum(multipliers, 0), multipliers)
    size, total = norm_of(W, norm), float(multipliers[inequality].sum())
    values = constraints.values(W)
    violation = float(np.abs(values / constraints.units)[~inequality].max(initial=0.0))
    feasible = size > 0 and violation <= EQUALITY_TOLERANCE * float(np.linalg.norm(W))
    low = float(values[inequality].min() / size) if feasible else -np.inf
    high = dual_norm(constraints.combined(multipliers), norm) / total if total > 0 else np.inf
    return Interval(low, max(low, high) if high > low * (1 - 1e-12) else high)
