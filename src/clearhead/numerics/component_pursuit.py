r"""Principal component pursuit: a matrix as one of low rank and one with few entries (Candes, Li, Ma and Wright 2011).

.. math:: \min_{L, S} |L|_* + \lambda |S|_1 \quad \text{subject to} \quad L + S = M

by the alternating directions method, in its authors' step size and weight. Names: `dual` is their Y. Their preprint
misprints this algorithm: it subtracts Y / mu in the step of L and thresholds by mu and lambda mu. Principal attention
pursuit inherited the sign; `dual_sign=-1` is here to show what it does.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.shrinkage import singular_value_threshold, soft_threshold
from clearhead.shapes import Float, ShapeError

__all__ = ["ComponentPursuit", "DualSign", "principal_component_pursuit"]

DualSign = Literal[-1, 1]
"""Of the dual variable in the step of the low-rank part: +1 as the method has it, -1 as it was once misprinted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPursuit:
    """The parts of a matrix, and how far they were found.

    `residual` is |M - L - S| over |M| in Frobenius norm; `converged` tells whether it came down to the tolerance.
    """

    low_rank: Float[Tensor, "n m"]
    sparse: Float[Tensor, "n m"]
    dual: Float[Tensor, "n m"]
    iterations: int
    residual: float
    converged: bool


def principal_component_pursuit(
    matrix: Float[Tensor, "n m"],
    *,
    weight: float | None = None,
    mu: float | None = None,
    tolerance: float = 1e-7,
    iterations: int = 1000,
    dual_sign: DualSign = 1,
) -> ComponentPursuit:
    r"""Split a matrix into a low-rank and a sparse part, in double precision.

    .. math::
        L \leftarrow \operatorname{svt}_{1/\mu}(M - S + Y/\mu), \quad
        S \leftarrow \operatorname{shrink}_{\lambda/\mu}(M - L + Y/\mu), \quad
        Y \leftarrow Y + \mu (M - L - S)

    weight: lambda, 1/sqrt(max(n, m)) if None
    mu: n m / (4 |M|_1) if None
    tolerance: of |M - L - S| / |M|, at which it stops; iterations: at most so many
    """
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(f"expected a matrix (n, m) with entries; got {tuple(matrix.shape)}")
    m = matrix.double()
    if not bool(m.isfinite().all()):
        raise InputError("expected finite entries; got some that are not")
    size = float(m.norm())
    if size == 0:
        zero = torch.zeros_like(matrix)
        return ComponentPursuit(low_rank=zero, sparse=zero, dual=zero, iterations=0, residual=0.0, converged=True)
    weight = 1 / math.sqrt(max(m.shape)) if weight is None else weight
    mu = 1 / (4 * float(m.abs().mean())) if mu is None else mu
    sparse = dual = torch.zeros_like(m)
    low_rank, residual, done = sparse, math.inf, 0
    while done < iterations and residual > tolerance:
        low_rank = singular_value_threshold(m - sparse + dual_sign * dual / mu, 1 / mu)
        sparse = soft_threshold(m - low_rank + dual / mu, weight / mu)
        gap = m - low_rank - sparse
        dual = dual + mu * gap
        residual, done = float(gap.norm()) / size, done + 1
    return ComponentPursuit(
        low_rank=low_rank.to(matrix.dtype),
        sparse=sparse.to(matrix.dtype),
        dual=dual.to(matrix.dtype),
        iterations=done,
        residual=residual,
        converged=residual <= tolerance,
    )
