"""What the general operator is: equations (1) to (4), multi-head attention, and its similarities (rows A, B, C, S).

The other side of each equation is the slow twin, or is written out here in the slides' own layout, tokens as columns.
"""

from functools import partial

import torch
from torch import Tensor

from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    gaussian,
    gaussian_distance,
    general_attention,
    general_attention_slow,
)
from clearhead.theories.statement import Statement, drawn
from clearhead.theories.symmetry.forms import (
    Weights,
    attention,
    drawn_weights,
    learned_query,
    multi_head,
    self_attention,
)
from clearhead.theories.symmetry.statement import SLIDES, WANG, apart, shape_error

__all__ = ["OPERATOR", "SIMILARITY"]

QUERIES, KEYS = 7, 11
QUERY_WIDTH, KEY_WIDTH, VALUE_WIDTH = 13, 17, 19
HEAD, OUT = 5, 3


def _operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (QUERIES, QUERY_WIDTH), (KEYS, KEY_WIDTH), (KEYS, VALUE_WIDTH)
    q, k, v = (drawn(*size, seed=place, dtype=dtype) for place, size in enumerate(sizes))
    return q, k, v


def _weights(dtype: torch.dtype) -> Weights:
    return drawn_weights((QUERY_WIDTH, KEY_WIDTH, VALUE_WIDTH), key=HEAD, value=OUT, seed=1, dtype=dtype)


def _own_weights(dtype: torch.dtype, *, key: int = HEAD, value: int = OUT, seed: int = 2) -> Weights:
    return drawn_weights((KEY_WIDTH,) * 3, key=key, value=value, seed=seed, dtype=dtype)


def _columns(q: Tensor, k: Tensor, v: Tensor, w: Weights, *, dim: int = 0) -> Tensor:
    """Equation (2) as printed: O = W_v V softmax((W_k K)^T W_q Q) over columns; `dim=1` is the wrong axis."""
    scores = (w.w_k.T @ k.T).T @ (w.w_q.T @ q.T)
    return (w.w_v.T @ v.T @ torch.softmax(scores, dim=dim)).T


def _pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of one width, in no need of a projection, and values."""
    q, k, v = (drawn(n, w, seed=5 + n, dtype=dtype) for n, w in ((QUERIES, HEAD), (KEYS, HEAD), (KEYS + 2, OUT)))
    return q, k, v[:KEYS]


def _a1(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    loop = general_attention_slow(q @ w.w_q, k @ w.w_k, v @ w.w_v)
    return max(apart(_columns(q, k, v, w), loop), apart(attention(q, k, v, w), loop))


def _a1_control(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    return apart(_columns(q, k, v, w, dim=1), attention(q, k, v, w))


def _divided(dtype: torch.dtype, *, shared: bool) -> float:
    """The sums of equation (1) over C_j, or over the mean C that all queries share."""
    q, k, v = _pairs(dtype)
    f = (q @ k.T).exp()
    C = f.sum(dim=1, keepdim=True)
    return apart(f @ v / (C.mean() if shared else C), general_attention(q, k, v))


def _a3(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    found = attention(q, k, v, w)
    alone = torch.cat([attention(q[j : j + 1], k, v, w) for j in range(QUERIES)])
    fewer = attention(q, k[:-2], v[:-2], w)
    return sum(shape_error(x, (QUERIES, OUT)) for x in (found, fewer)) + apart(found, alone)


def _a3_control(dtype: torch.dtype) -> float:
    q, k, v = _pairs(dtype)
    return shape_error(general_attention(k, q, v[:QUERIES]), (QUERIES, OUT))


def _constant_values(dtype: torch.dtype, *, over_queries: bool) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    same = v[:1].expand_as(v)
    found = _columns(q, k, same, w, dim=1) if over_queries else attention(q, k, same, w)
    return apart(found, (same @ w.w_v)[:1].expand(QUERIES, OUT))


def _scaled(dtype: torch.dtype, *, scale: float) -> float:
    q, k, v = _pairs(dtype)
    return apart(general_attention(q, k, v), general_attention(q, k, v, similarity=gaussian(scale=scale)))


def _outside(dtype: torch.dtype, similarity: Similarity) -> float:
    """How far outputs leave the box of the transformed values, relative to its sides."""
    q, k, v = _pairs(dtype)
    g = v.tanh()
    out = general_attention(q, k, v, similarity=similarity, value=torch.tanh)
    low, high = g.amin(dim=0), g.amax(dim=0)
    return float((torch.maximum(out - high, low - out) / (high - low)).clamp_min(0).max())


def _a6(dtype: torch.dtype) -> float:
    return max(_outside(dtype, f) for f in (gaussian(), gaussian_distance(bandwidth=2.0)))


def _a6_control(dtype: torch.dtype) -> float:
    w = 3 * drawn(2 * HEAD, seed=4, dtype=dtype)
    return min(_outside(dtype, f) for f in (dot_product(), concatenation(w)))


def _b1(dtype: torch.dtype) -> float:
    (_, x, _), w = _operands(dtype), _own_weights(dtype)
    return apart(self_attention(x, w), _columns(x, x, x, w))


def _b1_control(dtype: torch.dtype) -> float:
    (_, x, _), w = _operands(dtype), _own_weights(dtype)
    return apart(self_attention(x, w), _columns(x, x.flip(1), x, w))


def _learned(dtype: torch.dtype, *, again: bool) -> float:
    """A free query equal to X_Q W_q, for several m; `again` projects it once more, by a square matrix."""
    (_, x, _), w = _operands(dtype), _own_weights(dtype)
    asked = drawn(QUERIES, KEY_WIDTH, seed=6, dtype=dtype)
    free = asked @ w.w_q
    if again:
        free = free @ drawn(HEAD, HEAD, seed=7, dtype=dtype)
    errors = []
    for m in (KEYS, HEAD, 2):
        found = learned_query(x[:m], free, w)
        errors.append(shape_error(found, (QUERIES, OUT)) + apart(found, _columns(asked, x[:m], x[:m], w)))
    return max(errors)


def _blocks(dtype: torch.dtype, *, swapped: bool) -> float:
    """Heads of key widths 5, 2, 7 and value widths 3, 2, 11 against the sum of their own blocks of W_o."""
    _, x, _ = _operands(dtype)
    widths = ((5, 3), (2, 2), (7, 11))
    heads = [_own_weights(dtype, key=key, value=value, seed=3 + i) for i, (key, value) in enumerate(widths)]
    w_o = drawn(sum(value for _, value in widths), 13, seed=8, dtype=dtype)
    starts = (0, 3, 5)
    blocks = [w_o[start : start + value] for start, (_, value) in zip(starts, widths, strict=True)]
    parts = [_columns(x, x, x, head) @ block for head, block in zip(heads, blocks, strict=True)]
    return apart(multi_head(x, heads[::-1] if swapped else heads, w_o), torch.stack(parts).sum(dim=0))


def _one_head(dtype: torch.dtype, *, turned: bool) -> float:
    (_, x, _), w = _operands(dtype), _own_weights(dtype)
    w_o = torch.eye(OUT, dtype=dtype)
    return apart(multi_head(x, [w], w_o.roll(1, dims=0) if turned else w_o), _columns(x, x, x, w))


def _duplicated(dtype: torch.dtype, *, divided: bool) -> float:
    q, k, v = _pairs(dtype)
    w = drawn(2 * HEAD, seed=4, dtype=dtype)
    if not divided:
        return apart(torch.cat([q @ k.T] * 2, dim=1) @ v.repeat(2, 1), (q @ k.T) @ v)
    kinds = (gaussian(), gaussian_distance(bandwidth=2.0), dot_product(), concatenation(w))
    twice = (general_attention(q, k.repeat(2, 1), v.repeat(2, 1), similarity=f) for f in kinds)
    return max(apart(x, general_attention(q, k, v, similarity=f)) for x, f in zip(twice, kinds, strict=True))


def _by_count(dtype: torch.dtype, *, by_sum: bool) -> float:
    q, k, v = _pairs(dtype)
    f = q @ k.T
    C = f.sum(dim=1, keepdim=True) if by_sum else KEYS
    return apart(f @ v / C, general_attention(q, k, v, similarity=dot_product()))


def _value_map(dtype: torch.dtype, *, linear: bool) -> float:
    q, k, v = _pairs(dtype)
    w = drawn(OUT, OUT + 1, seed=11, dtype=dtype)

    def g(x: Tensor) -> Tensor:
        return x @ w if linear else torch.tanh(x @ w)

    return apart(general_attention(q, k, v, value=g), g(general_attention(q, k, v)))


OPERATOR = (
    Statement("A1", "the weighted sum and the matrix form are one operator", _a1,
              "softmax over the queries", _a1_control, f"{SLIDES}, equations (1) and (2)"),
    Statement("A2", "the normaliser belongs to the query: C_j, where the slide prints C",
              partial(_divided, shared=False),
              "one C for all queries", partial(_divided, shared=True), f"{SLIDES}, equation (1)"),
    Statement("A3", "one output per query, for any number of keys, and it depends on no other query", _a3,
              "queries and keys exchanged", _a3_control, f"{SLIDES}, equation (2)"),
    Statement("A4", "a query's weights sum to one: constant values come out unchanged",
              partial(_constant_values, over_queries=False),
              "softmax over the queries", partial(_constant_values, over_queries=True), f"{SLIDES}, equation (2)"),
    Statement("A5", "the default has no scale, as the slides have none", partial(_scaled, scale=1.0),
              "scale 1/sqrt(d)", partial(_scaled, scale=HEAD**-0.5), f"{SLIDES}, equation (2)"),
    Statement("A6", "outputs lie between the transformed values if f >= 0 and C is its sum", _a6,
              "dot product and concatenation over m", _a6_control, f"{SLIDES}, equation (1); {WANG}"),
    Statement("B1", "self-attention is attention with Q = K = V = X", _b1,
              "keys with their features reversed", _b1_control, f"{SLIDES}, equation (3)"),
    Statement("B2", "a learned query replaces W_q Q and sets the number of outputs, for any m",
              partial(_learned, again=False),
              "learned query projected again", partial(_learned, again=True), f"{SLIDES}, equation (4)"),
    Statement("C1", "heads of any widths add up, each through its own block of W_o", partial(_blocks, swapped=False),
              "heads in another order", partial(_blocks, swapped=True), f"{SLIDES}, multi-head attention"),
    Statement("C2", "one head with W_o = I is attention without heads", partial(_one_head, turned=False),
              "W_o a cyclic shift", partial(_one_head, turned=True), f"{SLIDES}, multi-head attention"),
)  # fmt: skip

SIMILARITY = (
    Statement("S1", "with its own C, no similarity notices that all tokens are given twice",
              partial(_duplicated, divided=True),
              "dot product not divided", partial(_duplicated, divided=False), WANG),
    Statement("S2", "the dot product is divided by the number of keys, for its sum may vanish",
              partial(_by_count, by_sum=False), "divided by its sum", partial(_by_count, by_sum=True), WANG),
    Statement("S3", "a linear g may act after attention as well as before", partial(_value_map, linear=True),
              "g = tanh", partial(_value_map, linear=False), f"{SLIDES}, equation (1)"),
)  # fmt: skip
