"""What an attention SVM gives: the matrix, its multipliers, and a bracket of the margin that anyone can check."""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from clearhead.numerics.moments import Interval
from clearhead.shapes import Bool, Float

__all__ = ["Conflict", "MarginWarning", "MaxMargin", "Norm", "Status"]


class Norm(StrEnum):
    """Which norm of W is least."""

    FROBENIUS = "Frobenius"
    """Where W itself is trained by gradient descent."""
    NUCLEAR = "nuclear"
    """Where K and Q of W = K Q^T are."""
    MAX_ENTRY = "max-entry"
    """Where W is trained by the signs of its gradients."""


class Status(StrEnum):
    """How a problem ended."""

    SOLVED = "solved"
    """The bracket of the margin is as narrow as was asked."""
    TRIVIAL = "trivial"
    """Nothing to separate: W = 0, and the margin is infinite."""
    INFEASIBLE = "infeasible"
    """No W selects these tokens; the conflict says why."""
    LOCAL = "solved locally"
    """With a bound on the rank: a W was found that no small change betters; others are excluded by the bracket only."""
    UNFINISHED = "unfinished"
    """The bracket is true but wider than was asked."""


class MarginWarning(UserWarning):
    """A problem that was solved, and whose answer hangs on something fragile. The message says on what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why no W selects the tokens: constraints whose weighted sum is zero, so that they cannot all be positive.

    `tokens` are (sequence, token) pairs, the token being one that must score lower than the selected one; `weights` are
    positive and sum to one; `residual` is the length of the weighted sum of constraints of length one.
    """

    tokens: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    residual: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMargin:
    r"""The matrix of least norm that selects the tokens with a margin of one, and what it rests on.

    margin: a bracket of :math:`\gamma = \max_{\|W\| \le 1} \min_j \langle A_j, W\rangle = 1 / \|W^{mm}\|`. Its low end
        is what W reaches, :math:`\min_j \langle A_j, W\rangle / \|W\|`; its high end is what the multipliers prove that
        no W passes, :math:`\|\sum_j \lambda_j A_j\|_* / \sum_j \lambda_j` in the dual norm.
    W: scaled to a least margin of one; None where infeasible, or where none was found.
    multipliers: :math:`\lambda \ge 0`, zero for tokens without a constraint. Not unique where tokens repeat.
    support: tokens whose constraint is active.
    query_rank: of the stacked queries; 1 means that the problem is one for a vector and not for a matrix.
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
        """Width of the bracket relative to its high end; 0 for a trivial problem."""
        if self.status is Status.TRIVIAL:
            return 0.0
        return (self.margin.high - self.margin.low) / self.margin.high if self.margin.high > 0 else float("inf")

    @property
    def objective(self) -> float:
        """The norm of W."""
        return 1 / self.margin.low if self.margin.low > 0 else float("inf")
