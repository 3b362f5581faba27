r"""RPC-Attention: the low-rank part of principal attention pursuit (Teo and Nguyen 2024, definition 1).

`pursuit` holds n, lambda, mu and the other options in which the paper, its code and principal component pursuit differ.
In the sources keys are the queries; separate queries are an addition of this package. In the published order one
iteration is `clamped_key_attention`, exactly: the baseline of more iterations.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.operators.pursuit import AttentionStep, iterate, iterate_in_chunks, pursue_published
from clearhead.operators.pursuit_options import PRESETS, Inner, Order, Pursuit, Shrink, hard_threshold, soft_threshold
from clearhead.operators.softmax import as_rows, slow_softmax_attention, split_causal
from clearhead.operators.symmetric import resolve_scale
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands, format_shapes

_RELEASED = PRESETS["code-2024-10"]


def rpc_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    pursuit: Pursuit = _RELEASED,
    dropout: float = 0.0,
) -> Float[Tensor, "*b n d"]:
    r"""Iterate attention on keys without their sparse part S, from L = S = Y = 0, and return L.

    .. math::
        S \leftarrow \operatorname{shrink}_t(K - L + Y/\mu), \quad
        L \leftarrow \operatorname{softmax}(\text{scale}\; Q \tilde K^T) V, \quad
        Y \leftarrow Y + \mu (K - L - S), \qquad \tilde K = K - S - Y/\mu

    q: Q, the same in all iterations; None for Q = K~, keys as queries, as published
    mask: boolean, broadcasts to (..., n, n), True where a token may attend; hidden keys enter no norm and no count
    is_causal: True if a token sees no later token; a causal mask is recognised, but this is faster
    scale: 1/sqrt(d) if None
    pursuit: the options, with t its bound
    dropout: probability of dropping attention weights, in the iterations that `pursuit` names

    With the mu of the presets a token's output depends only on tokens that it sees, directly or through the tokens that
    it sees: a sliding window reaches back by one more window in each iteration.

    This is not a convex splitting, because attention is not a proximal step: after the few iterations in use, K = L + S
    does not hold. Values have the width of keys, since L is subtracted from K. The compiled kernel runs the published
    steps in one call if q is None, without dropout, and with no mask but padding and a causal mask; all other calls use
    torch's fused attention. Neither stores an n x n matrix, and gradients flow through all iterations.
    """
    check_rpc(q, k, v, pursuit, mask, is_causal=is_causal)
    scale = resolve_scale(k, scale)
    mask, is_causal = split_causal(mask, k, is_causal=is_causal)
    bound = pursuit.bound.compute(k, mask, is_causal=is_causal)
    if pursuit.in_kernel and q is None and dropout == 0:
        step = AttentionStep(mask=mask, is_causal=is_causal, scale=scale)
        return pursue_published(k, v, bound, pursuit, step, iterations=pursuit.iterations)
    wide = torch.promote_types(k.dtype, torch.float32)
    q = None if q is None else q.to(wide)
    with no_autocast(k):
        step = AttentionStep(queries=q, mask=mask, is_causal=is_causal, scale=scale, dropout=dropout)
        return iterate_in_chunks(k.to(wide), v.to(wide), bound, pursuit, step).to(v.dtype)


def slow_rpc_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    pursuit: Pursuit = PRESETS["code-2024-10"],
) -> Float[Tensor, "*b n d"]:
    """Compute `rpc_attention` line by line, with S and Y, and attention row by row."""
    check_rpc(q, k, v, pursuit, mask)
    bound, mu = pursuit.bound.compute(k, mask).to(k.dtype), pursuit.bound.compute_mu(k, mask).to(k.dtype)
    shrink = soft_threshold if pursuit.shrink is Shrink.SOFT else hard_threshold
    low_rank = sparse = dual = torch.zeros_like(k)

    def sparse_part(i: int) -> Tensor:
        residual = k - low_rank + dual / mu
        if i == pursuit.iterations - 1 or pursuit.inner is Inner.SHRINK:
            return shrink(residual, bound)
        return residual if pursuit.inner is Inner.ALL else residual / 2

    for i in range(pursuit.iterations):
        if pursuit.order is Order.SPARSE_FIRST:
            sparse = sparse_part(i)
        keys = k - sparse + pursuit.dual_sign * dual / mu
        queries = keys if q is None else q
        if pursuit.centred:
            visible = torch.ones_like(k[..., :1], dtype=torch.bool)
            if mask is not None:
                visible = visible & as_rows(mask).expand(*mask.shape[:-2], 1, k.shape[-2]).mT
            mean = (queries * visible).sum(dim=-2, keepdim=True) / visible.sum(dim=-2, keepdim=True).clamp_min(1)
            queries = queries - mean
        low_rank = slow_softmax_attention(queries, keys, v, mask=mask, scale=scale)
        if pursuit.order is Order.LOW_RANK_FIRST:
            sparse = sparse_part(i)
        dual = dual + mu * (k - low_rank - sparse)
    return low_rank


def check_rpc(
    q: Tensor | None, k: Tensor, v: Tensor, pursuit: Pursuit, mask: Tensor | None, *, is_causal: bool = False
) -> None:
    """Raise `ShapeError` or ValueError unless the operands fit each other and the pursuit."""
    check_attention_operands(k if q is None else q, k, v, mask=mask)
    if v.shape != k.shape or (q is not None and q.shape != k.shape):
        got = format_shapes(q=q, k=k, v=v)
        raise ShapeError(f"expected q, k and v of one shape, since L is subtracted from K; got {got}")
    by_query = is_causal or (mask is not None and mask.ndim > 1 and mask.shape[-2] > 1)
    if pursuit.centred and by_query:
        raise InputError("centred queries need a mask that is the same for every query, or their mean leaks")


@dataclass(frozen=True, slots=True, kw_only=True)
class PursuitStep:
    """One iteration, with one number of each kind for each head.

    residual: |K - L - S| / |K|, 0 where the constraint holds
    nonzeros: share of nonzero entries in the sparse part
    diagonal: mean weight that a token gives to itself
    """

    low_rank: Float[Tensor, "*b n d"]
    sparse: Float[Tensor, "*b n d"]
    dual: Float[Tensor, "*b n d"]
    residual: Float[Tensor, "*b"]
    nonzeros: Float[Tensor, "*b"]
    diagonal: Float[Tensor, "*b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PursuitTrace:
    """The iterations in order, with their mu and bound. `dual` of a step is Y, not Y / mu."""

    mu: Float[Tensor, "*b #n 1"]
    bound: Float[Tensor, "*b #n 1"]
    steps: tuple[PursuitStep, ...]

    @property
    def out(self) -> Float[Tensor, "*b n d"]:
        """The output of `rpc_attention`."""
        return self.steps[-1].low_rank


@torch.no_grad()
def trace_pursuit(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    pursuit: Pursuit = _RELEASED,
) -> PursuitTrace:
    """Run `rpc_attention` and record its iterations. Padding counts in no number; n x n matrices are stored here."""
    check_rpc(q, k, v, pursuit, mask)
    scale = resolve_scale(k, scale)
    wide = torch.promote_types(k.dtype, torch.float32)
    k, v = k.to(wide), v.to(wide)
    q = None if q is None else q.to(wide)
    bound, mu = pursuit.bound.compute(k, mask), pursuit.bound.compute_mu(k, mask)
    visible = _visible_tokens(k, mask)
    steps: list[PursuitStep] = []

    def observe(keys: Tensor, low_rank: Tensor, sparse: Tensor, dual: Tensor) -> None:
        queries = keys if q is None else q
        gap = torch.where(visible, k - low_rank - sparse, 0).norm(dim=(-2, -1))
        share = ((sparse != 0) & visible).sum(dim=(-2, -1)) / (visible.sum(dim=(-2, -1)) * k.shape[-1]).clamp_min(1)
        weights = run_within_memory(
            partial(_diagonal_weights, queries, keys, mask, scale),
            task="the trace of a pursuit, which stores all scores,",
            remedy="pass fewer tokens at once, or use rpc_attention, which stores none",
            device=k.device,
            needed=bytes_of_matrices((*k.shape[:-1], k.shape[-2]), wide),
        )
        diagonal = torch.where(visible[..., 0], weights, 0)
        steps.append(
            PursuitStep(
                low_rank=low_rank,
                sparse=sparse,
                dual=mu * dual,
                residual=gap / torch.where(visible, k, 0).norm(dim=(-2, -1)).clamp_min(torch.finfo(wide).tiny),
                nonzeros=share.to(wide),
                diagonal=diagonal.sum(dim=-1) / visible.sum(dim=(-2, -1)).clamp_min(1),
            )
        )

    with no_autocast(k):
        iterate(k, v, bound, pursuit, AttentionStep(queries=q, mask=mask, scale=scale), observe=observe)
    return PursuitTrace(mu=mu, bound=bound, steps=tuple(steps))


def _visible_tokens(k: Tensor, mask: Tensor | None) -> Tensor:
    """Return (..., n, 1), True for tokens that some query sees."""
    if mask is None:
        return torch.ones_like(k[..., :1], dtype=torch.bool)
    return as_rows(mask).any(dim=-2).expand(k.shape[:-1])[..., None]


def _diagonal_weights(q: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention weight of each token on itself."""
    scores = scale * q @ keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    diagonal = scores.diagonal(dim1=-2, dim2=-1)
    return torch.where(diagonal > -torch.inf, (diagonal - scores.logsumexp(dim=-1)).exp(), 0)
