"""From a matrix and multipliers, however they were found, to an answer with its certificate."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.numerics.moments import Array, Interval
from clearhead.theories.max_margin.constraints import Constraints
from clearhead.theories.max_margin.norms import bracket
from clearhead.theories.max_margin.solution import Conflict, MaxMargin, Norm, Status

__all__ = ["certified", "infeasible", "trivial", "unfound"]

EPSILON = float(np.finfo(np.float64).eps)
NEAR = 1e-6
"""A constraint so much shorter than the longest decides the margin alone, and by the last digits of its tokens."""
ACTIVE = 1e-7
"""A constraint is active if it is met by no more than this and ten times the gap, which counts as no more than COARSE.
With a bound on the rank the gap is no measure of how exact W is, and the tolerance takes its place."""
COARSE = 1e-3


def trivial(rows: Constraints, shape: tuple[int, int], norm: Norm) -> MaxMargin:
    """Nothing to separate."""
    size = (rows.delta.shape[1], rows.z.shape[1])
    return MaxMargin(
        norm=norm,
        status=Status.TRIVIAL,
        W=torch.zeros(size, dtype=torch.float64),
        multipliers=torch.zeros(shape, dtype=torch.float64),
        margin=Interval(np.inf, np.inf),
        support=torch.zeros(shape, dtype=torch.bool),
        query_rank=_rank(rows.z),
    )


def infeasible(rows: Constraints, shape: tuple[int, int], norm: Norm, conflict: Conflict) -> MaxMargin:
    """No matrix does it. The weights of the conflict, for constraints as they are, prove that the margin is zero."""
    units = _placed(rows, rows.units, shape)
    multipliers = torch.zeros(shape, dtype=torch.float64)
    for place, weight in zip(conflict.tokens, conflict.weights, strict=True):
        multipliers[place] = weight / units[place]
    return MaxMargin(
        norm=norm,
        status=Status.INFEASIBLE,
        W=None,
        multipliers=multipliers,
        margin=Interval(0.0, 0.0),
        support=multipliers > 0,
        query_rank=_rank(rows.z),
        conflict=conflict,
    )


def unfound(rows: Constraints, shape: tuple[int, int], norm: Norm, multipliers: Array, remark: str) -> MaxMargin:
    """No matrix was found, though there may be one; the multipliers still prove what none passes."""
    return MaxMargin(
        norm=norm,
        status=Status.UNFINISHED,
        W=None,
        multipliers=_placed(rows, multipliers, shape),
        margin=Interval(0.0, bracket(rows, np.zeros((rows.delta.shape[1], rows.z.shape[1])), multipliers, norm).high),
        support=torch.zeros(shape, dtype=torch.bool),
        query_rank=_rank(rows.z),
        remarks=(*_remarks(rows), remark),
    )


def certified(
    rows: Constraints,
    shape: tuple[int, int],
    norm: Norm,
    W: Array,
    multipliers: Array,
    *,
    tolerance: float,
    local: bool = False,
) -> MaxMargin:
    """Scale W to a margin of one, and bracket the margin by W from below and by the multipliers from above.

    local: W is bound to a rank, and the multipliers prove a bound for all matrices
    """
    found = bracket(rows, W, multipliers, norm)
    margin = Interval(max(found.low, 0.0), found.high)  # W = 0 reaches zero
    values = rows.values(W)
    least = float(values[~rows.equal].min())
    gap = (margin.high - margin.low) / margin.high
    # Of a large W, differences of scores have no more digits than this.
    rounding = 8 * EPSILON * float(np.linalg.norm(W) * rows.lengths.max()) / least if least > 0 else 0.0
    status = Status.SOLVED if gap <= max(tolerance, rounding) else Status.LOCAL if local else Status.UNFINISHED
    scaled = values / least if least > 0 else np.full_like(values, np.nan)
    active = ~rows.equal & (scaled <= 1 + ACTIVE + 10 * (tolerance if local else min(gap, COARSE)))
    return MaxMargin(
        norm=norm,
        status=status if least > 0 else Status.UNFINISHED,
        W=torch.from_numpy(W / least) if least > 0 else None,
        multipliers=_placed(rows, multipliers, shape),
        margin=margin,
        support=_placed(rows, active, shape),
        query_rank=_rank(rows.z),
        remarks=tuple(_remarks(rows)),
    )


def _placed(rows: Constraints, numbers: NDArray[Any], shape: tuple[int, int]) -> Tensor:
    found = np.zeros(shape, dtype=numbers.dtype)
    found[rows.sequence, rows.token] = numbers
    return torch.from_numpy(found)


def _remarks(rows: Constraints) -> list[str]:
    """What the answer hangs on, where that is fragile."""
    lengths = np.where(rows.equal, np.inf, rows.lengths)
    shortest = int(lengths.argmin())
    if lengths[shortest] >= NEAR * rows.lengths.max():
        return []
    i, t = rows.sequence[shortest], rows.token[shortest]
    return [
        f"token {t} of sequence {i} is nearly the selected one, or its query nearly zero, and decides the margin; "
        "leave it out with keep if they are meant to be the same"
    ]


def _rank(z: Array) -> int:
    return int(np.linalg.matrix_rank(z)) if z.size else 0
