"""The solution of an attention SVM: the matrix, its multipliers, and bounds on the margin that anyone can check."""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from clearhead.numerics.moments import Interval
from clearhead.shapes import Bool, Float


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
    query_rank: rank of the stacked queries; if it is 1, the unknown is a vector rather than a matrix
    """

    norm: Norm
    status: Status
    W: Float[Tensor, "d e"] | None
    multipliers: Float[Tensor, "n t"]
    margin: Interval
    support: Bool[Tensor, "n t"]
    query_rank: int
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
