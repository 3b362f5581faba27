r"""Principal attention pursuit (PAP, Teo and Nguyen 2024, algorithm 1), and the principal component pursuit behind it.

PAP: its first iteration, its signs, its causality. K = L + S splits the keys into a low-rank and a sparse part; Y is
the dual variable, mu the penalty. Principal component pursuit (PCP; Candes, Li, Ma and Wright 2011) splits a matrix:

.. math:: \min_{L, S} |L|_* + \lambda |S|_1 \quad \text{subject to} \quad L + S = M

by the alternating direction method of multipliers, with its authors' step size and weight. `dual` is their Y. Their
preprint misprints this algorithm: it subtracts Y / mu in the step of L and thresholds by mu and lambda mu. PAP
inherited the sign; `dual_sign=-1` shows its effect.

Singular value thresholding (Cai, Candes and Shen 2010) is the proximal step of t times the nuclear norm, as soft
thresholding (`clearhead.operators.pursuit_options`) is that of t times the sum of absolute values.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.clamped_keys import KeyBound, KeyMu, Scope
from clearhead.operators.pursuit_options import DualSign, Order, Pursuit, soft_threshold
from clearhead.operators.rpc import rpc_attention, trace_pursuit
from clearhead.shapes import Float, ShapeError, check_finite
from clearhead_lab.theorems.kernel_pca.example import KEYS, Example, kernel_pca_theorem, largest_relative_error


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


BOUND = KeyBound(strength=0.3)
"""Clamps four of ten entries of the example's keys."""


def _values(e: Example) -> Tensor:
    """Return values of the keys' width, as PAP requires."""
    return torch.cat([e.v, e.v.flip(0)], dim=-1)[:, : e.k.shape[-1]]


def _symmetric_attention(e: Example, k: Tensor) -> Tensor:
    """Return softmax(s K K^T) V by its formula."""
    return (e.scale * k @ k.T).softmax(dim=-1) @ _values(e)


def _sparse_first(e: Example, iterations: int) -> float:
    """Compare PAP with symmetric attention on keys clamped to the bound."""
    t = BOUND.compute(e.k)
    clamped = torch.where(e.k > t, t, torch.where(e.k < -t, -t, e.k))
    actual = rpc_attention(None, e.k, _values(e), pursuit=Pursuit(iterations=iterations, bound=BOUND), scale=e.scale)
    return largest_relative_error(actual, _symmetric_attention(e, clamped))


def _low_rank_first(e: Example, iterations: int) -> float:
    """Compare PAP that updates L before S with symmetric attention."""
    pursuit = Pursuit(iterations=iterations, bound=BOUND, order=Order.LOW_RANK_FIRST)
    actual = rpc_attention(None, e.k, _values(e), pursuit=pursuit, scale=e.scale)
    return largest_relative_error(actual, _symmetric_attention(e, e.k))


def _keys_by_clamp(e: Example, sign: int) -> float:
    """Compare K - S - Y/mu with L + 2 sign Y/mu + clamp(K - L + Y/mu) after two iterations."""
    trace = trace_pursuit(None, e.k, _values(e), pursuit=Pursuit(iterations=2, bound=BOUND), scale=e.scale)
    low_rank, dual, t = trace.steps[-1].low_rank, trace.steps[-1].dual / trace.mu, trace.bound
    remainder = e.k - low_rank + dual
    sparse = remainder.sign() * (remainder.abs() - t).clamp_min(0)
    return largest_relative_error(low_rank + sign * 2 * dual + remainder.clamp(-t, t), e.k - sparse - dual)


@cache
def _recovery_error(sign: DualSign) -> float:
    """Return the relative error of the low-rank part that PCP finds: rank 4, 5 % of the entries corrupted."""
    generator = torch.Generator().manual_seed(20240613)
    left, right, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((60, 4), (4, 60), (60, 60))
    )
    low_rank = left @ right
    sparse = torch.where(torch.rand(60, 60, generator=generator) < 0.05, 10 * noise, 0)
    pursuit = principal_component_pursuit(low_rank + sparse, tolerance=1e-14, dual_sign=sign)
    return float((pursuit.low_rank - low_rank).norm() / low_rank.norm())


def _leak(e: Example, scope: Scope) -> float:
    """Return the relative change of all outputs but the last under a causal mask when the last key changes."""
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    changed = torch.cat([e.k[:-1], 9 - 5 * e.k[-1:]])
    pursuit = Pursuit(bound=KeyBound(strength=0.3, mu=KeyMu(scope=scope)))
    before, after = (
        rpc_attention(None, k, _values(e), pursuit=pursuit, mask=causal, scale=e.scale)[:-1] for k in (e.k, changed)
    )
    return float((after - before).abs().max() / before.abs().max())


PURSUIT_THEOREMS = (
    kernel_pca_theorem(
        "K20", "one iteration of PAP is symmetric attention on clamped keys", lambda e: _sparse_first(e, 1),
        "two iterations", lambda e: _sparse_first(e, 2), "algorithm 1 (derived here)",
    ),
    kernel_pca_theorem(
        "K21", "one iteration of PAP that updates L first is symmetric attention", lambda e: _low_rank_first(e, 1),
        "two iterations", lambda e: _low_rank_first(e, 2), "algorithms 1 and 2 (derived here)",
    ),
    kernel_pca_theorem(
        "K22", "K - S - Y/mu = L - 2Y/mu + clamp(K - L + Y/mu)", lambda e: _keys_by_clamp(e, -1),
        "the other sign of Y", lambda e: _keys_by_clamp(e, 1), "algorithm 1 (derived here)",
    ),
    kernel_pca_theorem(
        "K23", "PCP recovers a matrix of rank 4 of which 5 % of the entries are corrupted",
        lambda _: _recovery_error(1),
        "the sign of Y that PAP uses", lambda _: _recovery_error(-1), "algorithm 2 (Candes et al. 2011)",
    ),
    kernel_pca_theorem(
        "K24", "causal PAP does not depend on later tokens if mu is computed from the keys up to each token",
        lambda e: _leak(e, Scope.PREFIX),
        "mu computed from all keys of the head", lambda e: _leak(e, Scope.HEAD),
        "algorithm 1 (causal form derived here)",
    ),
)  # fmt: skip
