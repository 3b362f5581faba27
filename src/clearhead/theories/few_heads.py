"""Attention of some heads and tokens of an example, a few heads at a time, so that matrices stay in the cache."""

import torch
from torch import Tensor

from clearhead.heads import attention_weights
from clearhead.shapes import Bool, Float
from clearhead.theories.example import Example

__all__ = ["between", "first_weights", "head_slices", "of_heads"]

AT_ONCE = 2**18
"""Largest number of entries of the matrices that are held at once, unless a single head has more: 2 MB."""


def head_slices(heads: int, entries: int) -> list[slice]:
    """Return slices of heads whose matrices of `entries` numbers each are held at once."""
    step = max(1, AT_ONCE // entries)
    return [slice(start, start + step) for start in range(0, heads, step)]


def of_heads(mask_or_bias: Tensor | None, heads: slice) -> Tensor | None:
    """Return the part of a mask or bias (#h, n, m) for these heads."""
    return mask_or_bias if mask_or_bias is None or len(mask_or_bias) == 1 else mask_or_bias[heads]


def between(
    mask_or_bias: Tensor | None, heads: slice, queries: Bool[Tensor, "t"], tokens: Bool[Tensor, "t"]
) -> Tensor | None:
    """Return a mask or bias of these heads between queries and tokens, (#h, n, m)."""
    part = of_heads(mask_or_bias, heads)
    return None if part is None else part[:, queries][:, :, tokens]


def first_weights(
    example: Example,
    heads: slice,
    queries: Bool[Tensor, "t"],
    tokens: Bool[Tensor, "t"],
    *,
    mask: Bool[Tensor, "#h n m"] | None,
    count: int,
) -> Float[Tensor, "h n c"]:
    """Return the attention of queries on the first `count` of the tokens, in float64.

    mask: between queries and tokens; None if all are visible
    """
    q, k = example.q[heads][:, queries], example.k[heads][:, tokens]
    bias = between(example.bias, heads, queries, tokens)
    sinks = None if example.sinks is None else example.sinks[heads].double()

    def weights(part: slice) -> Tensor:
        of_part = attention_weights(
            q[part].double(), k[part].double(), scale=example.scale, mask=of_heads(mask, part),
            bias=of_heads(bias, part), softcap=example.softcap, sinks=None if sinks is None else sinks[part],
        )  # fmt: skip
        return of_part[..., :count].clone()  # a view would hold all weights

    return torch.cat([weights(part) for part in head_slices(len(q), q.shape[1] * k.shape[1])])
