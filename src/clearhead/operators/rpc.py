r"""RPC-Attention: the low-rank part that principal attention pursuit finds (Teo and Nguyen 2024, definition 1).

Names: `pursuit` holds n, lambda, mu and what else the paper, its code and the method it comes from do differently. The
sources let every token ask by its key; queries of their own are ours. In the published order one iteration is
`clamped_key_attention`, exactly: the baseline that more iterations have to beat.
"""

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.pursuit import principal_attention_pursuit
from clearhead.operators.pursuit_options import PRESETS, Pursuit
from clearhead.operators.pursuit_steps import Attending, pursue_by_parts
from clearhead.operators.symmetric import checked_scale
from clearhead.operators.symmetric_library import as_given
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands

__all__ = ["check_rpc", "rpc_attention"]

_CODE = PRESETS["code-2024-10"]


def rpc_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    pursuit: Pursuit = _CODE,
    queries: Float[Tensor, "*b n d"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*b n d"]:
    r"""Iterate attention on keys whose outlying part S is taken out, from L = S = Y = 0, and return L.

    .. math::
        S \leftarrow \operatorname{shrink}_t(K - L + Y/\mu), \quad
        L \leftarrow \operatorname{softmax}(\text{scale}\; Q \tilde K^T) V, \quad
        Y \leftarrow Y + \mu (K - L - S), \qquad \tilde K = K - S - Y/\mu

    with t the bound of `pursuit`, and Q = K~ unless there are `queries`, which stay the same in all iterations. mask:
    boolean, broadcasts to (..., n, n), True where a token may look; hidden keys enter no norm and no count, and with
    the presets' mu a token's output depends on nothing that it may not see, itself or through those that it sees: a
    sliding window reaches back by one more window in each iteration. `dropout` is the probability with which weights
    are dropped, in the iterations that `pursuit` names.

    This is no convex splitting, for attention is no proximal step: after the few iterations that are used, K = L + S
    does not hold. Values have the width of keys, since L is taken from K. Where the compiled kernel serves, with no
    queries, no dropout and at most padding, it runs the published steps in one call; all else goes over torch's fused
    attention. Neither stores an n x n matrix, and gradients flow through all iterations.
    """
    check_rpc(k, v, pursuit, queries, mask)
    scale = checked_scale(k, scale)
    bound = pursuit.bound.of(k, mask)
    if pursuit.fused and queries is None and dropout == 0 and bound.shape[-2] == 1:
        return principal_attention_pursuit(
            k,
            v,
            iterations=pursuit.iterations,
            threshold=bound[..., 0, 0],
            dual_sign=pursuit.dual_sign,
            mask=mask,
            scale=scale,
        )
    wide = torch.promote_types(k.dtype, torch.float32)
    asking = None if queries is None else queries.to(wide)
    with as_given(k):
        attending = Attending(queries=asking, mask=mask, scale=scale, dropout=dropout)
        return pursue_by_parts(k.to(wide), v.to(wide), bound, pursuit, attending).to(v.dtype)


def check_rpc(k: Tensor, v: Tensor, pursuit: Pursuit, queries: Tensor | None, mask: Tensor | None) -> None:
    """Raise `ShapeError` or `ValueError` unless this can be pursued."""
    check_attention_operands(k if queries is None else queries, k, v, mask=mask)
    shapes = {"k": k, "v": v} | ({} if queries is None else {"queries": queries})
    if any(x.shape != k.shape for x in shapes.values()):
        got = ", ".join(f"{name} {tuple(x.shape)}" for name, x in shapes.items())
        raise ShapeError(f"expected keys, values and queries of one shape, as L is taken from K; got {got}")
    if pursuit.centred and mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        raise InputError("centred queries need a mask that is the same for every query: their mean would leak")
