"""Attention weights, (..., n, m), of operators that themselves store no such matrix: for callers who ask for them."""

import torch
from torch import Tensor

from clearhead.heads import attention_weights
from clearhead.operators.clamped_keys import KeyBound
from clearhead.operators.pursuit import AttentionStep, iterate
from clearhead.operators.pursuit_options import Pursuit
from clearhead.operators.softmax import split_causal
from clearhead.operators.symmetric import resolve_scale
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.shapes import Bool, Float


def softmax_attention_weights(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    bias: Float[Tensor, "..."] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return the w of `softmax_attention`, in single precision or better; zeros for a query without a visible key."""
    wide = torch.promote_types(q.dtype, torch.float32)
    with no_autocast(q):
        return attention_weights(
            q.to(wide), k.to(wide), scale=resolve_scale(k, scale), mask=mask, bias=bias, softcap=softcap,
            sinks=None if sinks is None else sinks.to(wide),
        )  # fmt: skip


def clamped_key_weights(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b m d"],
    *,
    tokens: int,
    bound: KeyBound,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return the weights of `clamped_key_attention`, or those of the last tokens in `last_clamped_key_attention`.

    tokens: n
    """
    if tokens == k.shape[-2]:
        keys, is_causal = split_causal(mask, k, is_causal=False)
    else:
        keys, is_causal = None if mask is None else mask[..., -1:, :], True
    t = bound.compute(k, keys, is_causal=is_causal)
    with no_autocast(k):
        clamped = k.to(torch.promote_types(k.dtype, torch.float32)).clamp(-t, t)
    queries = clamped[..., k.shape[-2] - tokens :, :] if q is None else q
    return softmax_attention_weights(queries, clamped, mask=mask, scale=scale)


def rpc_weights(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    pursuit: Pursuit,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n n"]:
    """Return the weights of the last iteration of `rpc_attention` without dropout: its output is their mean of v."""
    keys, is_causal = split_causal(mask, k, is_causal=False)
    bound = pursuit.bound.compute(k, keys, is_causal=is_causal)
    wide = torch.promote_types(k.dtype, torch.float32)
    attended = k

    def observe(keys: Tensor, *_: Tensor) -> None:
        nonlocal attended
        attended = keys

    with no_autocast(k):
        queries = None if q is None else q.to(wide)
        step = AttentionStep(queries=queries, mask=keys, is_causal=is_causal, scale=resolve_scale(k, scale))
        iterate(k.to(wide), v.to(wide), bound, pursuit, step, observe=observe)
        queries = step.queries_for(attended, centred=pursuit.centred)
    return softmax_attention_weights(queries, attended, mask=mask, scale=scale)
