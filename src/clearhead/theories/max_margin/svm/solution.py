"""The solution of an attention SVM: the matrix, its multipliers, and bounds on the margin that anyone can check."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.numerics.moments import Array, Interval
from clearhead.shapes import Bool, Float
from clearhead.theories.max_margin.svm.constraints import Constraints


class Norm(StrEnum):
    """The norm of W that is minimised."""

    FROBENIUS = "Frobenius"
    """The norm that gradient descent on W minimises."""
    NUCLEAR = "nuclear"
    """The norm that gradient descent on K and Q of W = K Q^T minimises."""
    MAX_ENTRY = "max-entry"
    """The norm that sign descent on W minimises."""


class Status(StrEnum):
    """The outcome of solving a problem."""

    SOLVED = "solved"
    """The bounds on the margin are as close as the tolerance asks."""
    TRIVIAL = "trivial"
    """There is nothing to separate: W = 0, and the margin is infinite."""
    INFEASIBLE = "infeasible"
    """No W selects these tokens; the conflict says why."""
    LOCAL = "solved locally"
    """With a bound on the rank: no small change improves W, but only the bounds on the margin exclude a better W."""
    UNFINISHED = "unfinished"
    """The bounds on the margin are valid but wider than the tolerance."""


class MarginWarning(UserWarning):
    """A solved problem whose solution depends on nearly equal tokens; the message names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A proof that no W selects the tokens: constraints with a weighted sum of zero, which cannot all be positive.

    tokens: (sequence, token) pairs of the constraints; each token must score lower than the selected one
    weights: positive, with sum one
    residual: norm of the weighted sum of the constraint matrices at length one; zero up to rounding
    """

    tokens: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    residual: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMargin:
    r"""The matrix of least norm that selects the tokens with a margin of one, and the proof of its margin.

    margin: bounds on :math:`\gamma = \max_{\|W\| \le 1} \min_j \langle A_j, W\rangle = 1 / \|W^{mm}\|`. W attains the
        lower bound :math:`\min_j \langle A_j, W\rangle / \|W\|`; the multipliers prove the upper bound
        :math:`\|\sum_j \lambda_j A_j\|_* / \sum_j \lambda_j` in the dual norm
    W: scaled so that its smallest margin is one; None if the problem is infeasible or no W was found
    multipliers: :math:`\lambda \ge 0`, zero for tokens without a constraint. Not unique if tokens are repeated
    support: tokens whose constraint is active
    """

    norm: Norm
    status: Status
    W: Float[Tensor, "d e"] | None
    multipliers: Float[Tensor, "n t"]
    margin: Interval
    support: Bool[Tensor, "n t"]
    conflict: Conflict | None = None
    remarks: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """Upper minus lower bound of the margin, relative to the upper; 0 for a trivial problem."""
        if self.status is Status.TRIVIAL:
            return 0.0
        return (self.margin.high - self.margin.low) / self.margin.high if self.margin.high > 0 else float("inf")

    @property
    def objective(self) -> float:
        """The norm of W."""
        return 1 / self.margin.low if self.margin.low > 0 else float("inf")


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


EPSILON = float(np.finfo(np.float64).eps)
FRAGILE = 1e-6
"""A constraint shorter than this, relative to the longest, determines the margin by the last digits of its tokens."""
ACTIVE = 1e-7
"""A constraint is active if its excess is at most this plus ten times the gap, where the gap counts for at most
`LARGEST_GAP`. With a bound on the rank the gap does not say how exact W is, and the tolerance takes its place."""
LARGEST_GAP = 1e-3


def trivial_solution(constraints: Constraints, shape: tuple[int, int], norm: Norm) -> MaxMargin:
    """Return W = 0 for a problem with nothing to separate."""
    size = (constraints.delta.shape[1], constraints.z.shape[1])
    return MaxMargin(
        norm=norm,
        status=Status.TRIVIAL,
        W=torch.zeros(size, dtype=torch.float64),
        multipliers=torch.zeros(shape, dtype=torch.float64),
        margin=Interval(np.inf, np.inf),
        support=torch.zeros(shape, dtype=torch.bool),
    )


def infeasible_solution(constraints: Constraints, shape: tuple[int, int], norm: Norm, conflict: Conflict) -> MaxMargin:
    """Return the result for an infeasible problem; the conflict's weights are multipliers that prove a margin of 0."""
    units = _by_token(constraints, constraints.units, shape)
    multipliers = torch.zeros(shape, dtype=torch.float64)
    for token, weight in zip(conflict.tokens, conflict.weights, strict=True):
        multipliers[token] = weight / units[token]
    return MaxMargin(
        norm=norm,
        status=Status.INFEASIBLE,
        W=None,
        multipliers=multipliers,
        margin=Interval(0.0, 0.0),
        support=multipliers > 0,
        conflict=conflict,
    )


def unfound_solution(
    constraints: Constraints, shape: tuple[int, int], norm: Norm, multipliers: Array, remark: str
) -> MaxMargin:
    """Return the result if no matrix was found, though one may exist, with the multipliers' upper bound."""
    zero = np.zeros((constraints.delta.shape[1], constraints.z.shape[1]))
    return MaxMargin(
        norm=norm,
        status=Status.UNFINISHED,
        W=None,
        multipliers=_by_token(constraints, multipliers, shape),
        margin=Interval(0.0, bracket(constraints, zero, multipliers, norm).high),
        support=torch.zeros(shape, dtype=torch.bool),
        remarks=(*_remarks(constraints), remark),
    )


def certified_solution(
    constraints: Constraints,
    shape: tuple[int, int],
    norm: Norm,
    W: Array,
    multipliers: Array,
    *,
    tolerance: float,
    rank_bounded: bool = False,
) -> MaxMargin:
    """Scale W to a margin of one and bound the margin by W from below and by the multipliers from above.

    rank_bounded: W has a bounded rank, while the multipliers' bound holds for all matrices
    """
    bounds = bracket(constraints, W, multipliers, norm)
    margin = Interval(max(bounds.low, 0.0), bounds.high)  # W = 0 attains zero
    values = constraints.values(W)
    least = float(values[~constraints.equal].min())
    gap = (margin.high - margin.low) / margin.high
    # Differences of scores of a large W have a rounding error of this size.
    rounding = 8 * EPSILON * float(np.linalg.norm(W) * constraints.lengths.max()) / least if least > 0 else 0.0
    unproved = Status.LOCAL if rank_bounded else Status.UNFINISHED
    status = Status.SOLVED if gap <= max(tolerance, rounding) else unproved
    scaled = values / least if least > 0 else np.full_like(values, np.nan)
    slack = ACTIVE + 10 * (tolerance if rank_bounded else min(gap, LARGEST_GAP))
    active = ~constraints.equal & (scaled <= 1 + slack)
    return MaxMargin(
        norm=norm,
        status=status if least > 0 else Status.UNFINISHED,
        W=torch.from_numpy(W / least) if least > 0 else None,
        multipliers=_by_token(constraints, multipliers, shape),
        margin=margin,
        support=_by_token(constraints, active, shape),
        remarks=tuple(_remarks(constraints)),
    )


def _by_token(constraints: Constraints, values: NDArray[Any], shape: tuple[int, int]) -> Tensor:
    """Return the value of every constraint at its sequence and token, zero elsewhere."""
    array = np.zeros(shape, dtype=values.dtype)
    array[constraints.sequence, constraints.token] = values
    return torch.from_numpy(array)


def _remarks(constraints: Constraints) -> list[str]:
    """Return a warning if one constraint is so short that its rounding error determines the margin."""
    lengths = np.where(constraints.equal, np.inf, constraints.lengths)
    shortest = int(lengths.argmin())
    if lengths[shortest] >= FRAGILE * constraints.lengths.max():
        return []
    i, t = constraints.sequence[shortest], constraints.token[shortest]
    return [
        f"token {t} of sequence {i} nearly equals the selected token, or its query is nearly zero, and this determines "
        "the margin; hide it with mask if the two tokens are meant to be equal"
    ]
