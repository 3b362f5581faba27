"""The forms of attention that the statements speak of, small, over `operators.general`.

Names here and there: W_q, W_k, W_v and W_o are the slides', transposed, for tokens are rows: W_q X there, X W_q here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.operators.general import embedded_gaussian, general_attention
from clearhead.theories.statement import drawn

__all__ = [
    "Weights",
    "attention",
    "drawn_weights",
    "learned_query",
    "multi_head",
    "self_attention",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The projections of one head."""

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor


def drawn_weights(inputs: tuple[int, int, int], *, key: int, value: int, seed: int, dtype: torch.dtype) -> Weights:
    """Projections from the widths of q, k and v to the head's key and value widths, which keep the tokens' size."""
    shapes = zip(inputs, (key, key, value), range(3), strict=True)
    w_q, w_k, w_v = (
        drawn(width, out, seed=1000 * seed + place, dtype=dtype) / math.sqrt(width) for width, out, place in shapes
    )
    return Weights(w_q=w_q, w_k=w_k, w_v=w_v)


def attention(q: Tensor, k: Tensor, v: Tensor, weights: Weights, **added: Any) -> Tensor:
    """Equation (2): softmax attention of projected queries, keys and values, without a scale."""
    similarity = embedded_gaussian(lambda x: x @ weights.w_q, lambda x: x @ weights.w_k)
    return general_attention(q, k, v, similarity=similarity, value=lambda x: x @ weights.w_v, **added)


def self_attention(x: Tensor, weights: Weights, **added: Any) -> Tensor:
    """Equation (3), A_S: queries, keys and values are one set of tokens."""
    return attention(x, x, x, weights, **added)


def learned_query(x: Tensor, queries: Tensor, weights: Weights) -> Tensor:
    """Equation (4), A_Q: the queries are parameters, of the head's key width, and are not projected."""
    similarity = embedded_gaussian(None, lambda x: x @ weights.w_k)
    return general_attention(queries, x, x, similarity=similarity, value=lambda x: x @ weights.w_v)


def multi_head(x: Tensor, heads: Sequence[Weights], w_o: Tensor) -> Tensor:
    """The heads' outputs side by side, mixed by W_o; key and value widths may differ from head to head."""
    return torch.cat([self_attention(x, weights) for weights in heads], dim=-1) @ w_o
