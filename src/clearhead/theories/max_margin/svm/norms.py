"""Norms of matrices, their dual norms, and the bracket of a margin that a matrix and multipliers prove."""

import numpy as np

from clearhead.numerics.moments import Array, Interval
from clearhead.theories.max_margin.svm.constraints import Constraints
from clearhead.theories.max_margin.svm.solution import Norm

__all__ = ["bracket", "dual_norm", "norm_of"]

EQUAL = 1e-10
"""What counts as equal to zero, for a constraint and a W of length one."""


def norm_of(W: Array, norm: Norm) -> float:
    """The norm of W."""
    if norm is Norm.FROBENIUS:
        return float(np.linalg.norm(W))
    return float(np.linalg.norm(W, "nuc") if norm is Norm.NUCLEAR else np.abs(W).max(initial=0.0))


def dual_norm(W: Array, norm: Norm) -> float:
    """The largest inner product of W with a matrix whose norm is one."""
    if norm is Norm.FROBENIUS:
        return float(np.linalg.norm(W))
    return float(np.linalg.norm(W, 2) if norm is Norm.NUCLEAR else np.abs(W).sum())


def bracket(constraints: Constraints, W: Array, multipliers: Array, norm: Norm) -> Interval:
    """What W reaches, and what the multipliers prove that nobody passes: min <A_j, W> / |W| and |sum l A|* / sum l.

    Rows that must be equal to zero enter neither minimum nor sum; their multipliers may have any sign, and a W that
    does not meet them reaches nothing. Negative multipliers of the others are taken as zero, so the bracket is true
    whatever is given. Should rounding turn it around by its last digits, both ends are the low one.
    """
    must = ~constraints.equal
    multipliers = np.where(must, np.maximum(multipliers, 0), multipliers)
    size, total = norm_of(W, norm), float(multipliers[must].sum())
    values = constraints.values(W)
    missed = float(np.abs(values / constraints.units)[~must].max(initial=0.0))
    reaches = size > 0 and missed <= EQUAL * float(np.linalg.norm(W))
    low = float(values[must].min() / size) if reaches else -np.inf
    high = dual_norm(constraints.combined(multipliers), norm) / total if total > 0 else np.inf
    return Interval(low, max(low, high) if high > low * (1 - 1e-12) else high)
