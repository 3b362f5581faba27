"""Principal attention pursuit (PAP, Teo and Nguyen 2024, algorithm 1): its first iteration, its signs, its causality.

K = L + S splits the keys into a low-rank and a sparse part; Y is the dual variable, mu the penalty.
"""

from functools import cache

import torch
from torch import Tensor

from clearhead.operators.clamped_keys import KeyBound, KeyMu, Scope
from clearhead.operators.pursuit_options import DualSign, Order, Pursuit
from clearhead.operators.rpc import rpc_attention, trace_pursuit
from clearhead_lab.theorems.kernel_pca.component_pursuit import principal_component_pursuit
from clearhead_lab.theorems.kernel_pca.example import KEYS, Example, kernel_pca_theorem, largest_relative_error

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
