r"""Principal component pursuit: a matrix as one of low rank and one with few entries (Candes, Li, Ma and Wright 2011).

.. math:: \min_{L, S} |L|_* + \lambda |S|_1 \quad \text{subject to} \quad L + S = M

by the alternating direction method of multipliers, with its authors' step size and weight. `dual` is their Y. Their
preprint misprints this algorithm: it subtracts Y / mu in the step of L and thresholds by mu and lambda mu. Principal
attention pursuit inherited the sign; `dual_sign=-1` shows its effect.

Singular value thresholding (Cai, Candes and Shen 2010) is the proximal step of t times the nuclear norm, as soft
thresholding (`clearhead.operators.pursuit_options`) is that of t times the sum of absolute values.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.pursuit_options import DualSign, soft_threshold
from clearhead.shapes import Float, ShapeError, check_finite

__all__ = ["principal_component_pursuit", "singular_value_threshold"]


def singular_value_threshold(x: Float[Tensor, "*b n m"], t: Float[Tensor, "*b"] | float) -> Float[Tensor, "*b n m"]:
    r"""Soft-threshold the singular values: return :math:`U \max(\Sigma - t, 0) V^T` for x = U Sigma V^T."""
    check_finite("matrices", x)
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    at_least = t[..., None] if isinstance(t, Tensor) else t
    thresholded: Tensor = (u * (values - at_least).clamp_min(0)[..., None, :]) @ v
    return thresholded


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPursuit:
    """A matrix split into a low-rank and a sparse part.

    `residual` is |M - L - S| / |M| in Frobenius norm; `converged` is True if it reached the tolerance.
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
    tolerance: float = 1e-7,
    iterations: int = 1000,
    dual_sign: DualSign = 1,
) -> ComponentPursuit:
    r"""Split a matrix into a low-rank and a sparse part, in double precision.

    .. math::
        L \leftarrow \operatorname{svt}_{1/\mu}(M - S + Y/\mu), \quad
        S \leftarrow \operatorname{shrink}_{\lambda/\mu}(M - L + Y/\mu), \quad
        Y \leftarrow Y + \mu (M - L - S)

    with lambda = 1/sqrt(max(n, m)) and mu = n m / (4 |M|_1).

    tolerance: value of |M - L - S| / |M| at which to stop
    iterations: largest number of iterations
    """
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(f"expected a matrix (n, m) with entries; got {tuple(matrix.shape)}")
    m = matrix.double()
    if not bool(m.isfinite().all()):
        raise InputError("expected a finite matrix; got NaN or infinity")
    size = float(m.norm())
    if size == 0:
        zero = torch.zeros_like(matrix)
        return ComponentPursuit(low_rank=zero, sparse=zero, dual=zero, iterations=0, residual=0.0, converged=True)
    weight = 1 / math.sqrt(max(m.shape))
    mu = 1 / (4 * float(m.abs().mean()))
    sparse = dual = torch.zeros_like(m)
    low_rank, residual, count = sparse, math.inf, 0
    while count < iterations and residual > tolerance:
        low_rank = singular_value_threshold(m - sparse + dual_sign * dual / mu, 1 / mu)
        sparse = soft_threshold(m - low_rank + dual / mu, weight / mu)
        gap = m - low_rank - sparse
        dual = dual + mu * gap
        residual, count = float(gap.norm()) / size, count + 1
    return ComponentPursuit(
        low_rank=low_rank.to(matrix.dtype),
        sparse=sparse.to(matrix.dtype),
        dual=dual.to(matrix.dtype),
        iterations=count,
        residual=residual,
        converged=residual <= tolerance,
    )
