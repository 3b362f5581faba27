"""Principal attention pursuit: what its iterations are exactly, what its signs do, and what its mu may leak."""

from functools import cache

import torch
from torch import Tensor

from clearhead.numerics.component_pursuit import DualSign, principal_component_pursuit
from clearhead.operators.key_bound import KeyBound, KeyMu, Scope
from clearhead.operators.pursuit_options import Order, Pursuit
from clearhead.operators.pursuit_trace import trace_pursuit
from clearhead.operators.rpc import rpc_attention
from clearhead.theories.kernel_pca.statement import KEYS, Drawn, Statement, apart

__all__ = ["PURSUIT_STATEMENTS"]

BOUND = KeyBound(strength=0.3)
"""Clamps four entries of ten of the drawn keys."""


def _values(d: Drawn) -> Tensor:
    """As wide as the keys."""
    return torch.cat([d.v, d.v.flip(0)], dim=-1)[:, : d.k.shape[-1]]


def _attention(d: Drawn, k: Tensor) -> Tensor:
    """By its formula, all scores at once."""
    return (d.scale * k @ k.T).softmax(dim=-1) @ _values(d)


def _once(d: Drawn, iterations: int) -> float:
    t = BOUND.of(d.k)
    clamped = torch.where(d.k > t, t, torch.where(d.k < -t, -t, d.k))
    got = rpc_attention(d.k, _values(d), pursuit=Pursuit(iterations=iterations, bound=BOUND), scale=d.scale)
    return apart(got, _attention(d, clamped))


def _once_low_rank_first(d: Drawn, iterations: int) -> float:
    pursuit = Pursuit(iterations=iterations, bound=BOUND, order=Order.LOW_RANK_FIRST)
    return apart(rpc_attention(d.k, _values(d), pursuit=pursuit, scale=d.scale), _attention(d, d.k))


def _keys_by_clamp(d: Drawn, sign: int) -> float:
    """K - S - Y / mu as L - 2 Y / mu + clamp(K - L + Y / mu), after two iterations."""
    trace = trace_pursuit(d.k, _values(d), pursuit=Pursuit(iterations=2, bound=BOUND), scale=d.scale)
    low_rank, dual, t = trace.steps[-1].low_rank, trace.steps[-1].dual / trace.mu, trace.bound
    left = d.k - low_rank + dual
    sparse = left.sign() * (left.abs() - t).clamp_min(0)
    return apart(low_rank + sign * 2 * dual + left.clamp(-t, t), d.k - sparse - dual)


@cache
def _recovered(sign: DualSign) -> float:
    """How far the low-rank part is from the one that a matrix of rank 4, a twentieth of it spoiled, was made with."""
    generator = torch.Generator().manual_seed(20240613)
    left, right, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((60, 4), (4, 60), (60, 60))
    )
    low_rank = left @ right
    sparse = torch.where(torch.rand(60, 60, generator=generator) < 0.05, 10 * noise, 0)
    found = principal_component_pursuit(low_rank + sparse, tolerance=1e-14, dual_sign=sign)
    return float((found.low_rank - low_rank).norm() / low_rank.norm())


def _leak(d: Drawn, scope: Scope) -> float:
    """How far the outputs of all tokens but the last move when the last key does, under a causal mask."""
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    later = torch.cat([d.k[:-1], 9 - 5 * d.k[-1:]])
    pursuit = Pursuit(bound=KeyBound(strength=0.3, mu=KeyMu(scope=scope)))
    before, after = (
        rpc_attention(k, _values(d), pursuit=pursuit, mask=causal, scale=d.scale)[:-1] for k in (d.k, later)
    )
    return float((after - before).abs().max() / before.abs().max())


PURSUIT_STATEMENTS = (
    Statement("K20", "one iteration of PAP is symmetric attention on clamped keys", lambda d: _once(d, 1),
              "two iterations", lambda d: _once(d, 2), "algorithm 1 (derived here)"),
    Statement("K21", "with the low-rank part first it is symmetric attention itself",
              lambda d: _once_low_rank_first(d, 1),
              "two iterations", lambda d: _once_low_rank_first(d, 2), "algorithms 1 and 2 (derived here)"),
    Statement("K22", "K - S - Y/mu = L - 2Y/mu + clamp(K - L + Y/mu)", lambda d: _keys_by_clamp(d, -1),
              "the other sign of Y", lambda d: _keys_by_clamp(d, 1), "algorithm 1 (derived here)"),
    Statement("K23", "PCP recovers a matrix of rank 4 of which 5 % is spoiled", lambda _: _recovered(1),
              "the sign of Y that PAP inherited", lambda _: _recovered(-1), "algorithm 2 (Candes et al. 2011)"),
    Statement("K24", "with mu of a token's own past, causal PAP sees nothing of the future",
              lambda d: _leak(d, Scope.PREFIX),
              "mu of the whole head", lambda d: _leak(d, Scope.HEAD), "algorithm 1 (causal form derived here)"),
)  # fmt: skip
