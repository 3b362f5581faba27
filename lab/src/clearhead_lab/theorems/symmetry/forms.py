"""The forms of attention that the theorems are about, written with `operators.general`, and their sources.

Ji and Xie write tokens as columns, W_q X; here tokens are rows and W_q, W_k, W_v and W_o are transposed: X W_q.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.operators.general import embedded_gaussian, general_attention
from clearhead_lab.theorems.theorem import normal_tensor

SLIDES = "Ji and Xie"
WANG = "Wang et al. 2018 (arXiv 1711.07971), section 3.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The projections of one head."""

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor


def random_weights(
    widths: tuple[int, int, int], *, key_width: int, value_width: int, seed: int, dtype: torch.dtype
) -> Weights:
    """Return normal projections from the widths of q, k and v, scaled so that projected tokens keep their size."""
    w_q, w_k, w_v = (
        normal_tensor(width, out, seed=1000 * seed + index, dtype=dtype) / math.sqrt(width)
        for index, (width, out) in enumerate(zip(widths, (key_width, key_width, value_width), strict=True))
    )
    return Weights(w_q=w_q, w_k=w_k, w_v=w_v)


def attention(q: Tensor, k: Tensor, v: Tensor, weights: Weights, **options: Any) -> Tensor:
    """Return A(Q, K, V) of equation (2): softmax attention of projected queries, keys and values, without a scale."""
    similarity = embedded_gaussian(lambda x: x @ weights.w_q, lambda x: x @ weights.w_k)
    return general_attention(q, k, v, similarity=similarity, value=lambda x: x @ weights.w_v, **options)


def self_attention(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    """Return A_S(X) of equation (3): queries, keys and values are the same tokens."""
    return attention(x, x, x, weights, **options)


def learned_query_attention(x: Tensor, queries: Tensor, weights: Weights) -> Tensor:
    """Return A_Q(X) of equation (4): the queries are parameters of the head's key width and are not projected."""
    similarity = embedded_gaussian(None, lambda x: x @ weights.w_k)
    return general_attention(queries, x, x, similarity=similarity, value=lambda x: x @ weights.w_v)


def multi_head_attention(x: Tensor, heads: Sequence[Weights], w_o: Tensor) -> Tensor:
    """Return the concatenated outputs of the heads times W_o; heads may have different key and value widths."""
    return torch.cat([self_attention(x, weights) for weights in heads], dim=-1) @ w_o


def shape_error(actual: Tensor, expected: tuple[int, ...]) -> float:
    """Return the sum of the relative differences of the sizes; infinite if the number of axes differs."""
    if actual.ndim != len(expected):
        return math.inf
    return sum(abs(size - right) / right for size, right in zip(actual.shape, expected, strict=True))
