"""Reference definitions of principal attention pursuit and RPC-Attention: the published lines one by one."""

import torch
from torch import Tensor

from clearhead.numerics.component_pursuit import DualSign, hard_threshold, soft_threshold
from clearhead.operators.pursuit import check_pursuit, threshold_by_head
from clearhead.operators.pursuit_options import PRESETS, Inner, Order, Pursuit, Shrink
from clearhead.operators.reference.attention import softmax_attention
from clearhead.operators.rpc import check_rpc
from clearhead.operators.softmax import as_rows
from clearhead.shapes import Bool, Float

__all__ = ["principal_attention_pursuit", "rpc_attention"]


def principal_attention_pursuit(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    iterations: int,
    threshold: Float[Tensor, "..."] | float,
    dual_sign: DualSign = -1,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.principal_attention_pursuit` line by line, with the sparse part and the dual update."""
    scale = check_pursuit(k, v, iterations, dual_sign, mask, scale)
    t = threshold_by_head(k, threshold)[..., None, None].to(k.dtype)
    low_rank = dual = torch.zeros_like(k)
    for _ in range(int(iterations)):
        residual = k - low_rank + dual
        sparse = residual.sign() * (residual.abs() - t).clamp_min(0)
        keys = k - sparse + dual_sign * dual
        low_rank = softmax_attention(keys, keys, v, mask=mask, scale=scale)
        dual = dual + (k - low_rank - sparse)
    return low_rank


def rpc_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    pursuit: Pursuit = PRESETS["code-2024-10"],
) -> Float[Tensor, "*b n d"]:
    """Compute `operators.rpc_attention` line by line, with S and Y, and attention row by row."""
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
        low_rank = softmax_attention(queries, keys, v, mask=mask, scale=scale)
        if pursuit.order is Order.LOW_RANK_FIRST:
            sparse = sparse_part(i)
        dual = dual + mu * (k - low_rank - sparse)
    return low_rank
