"""Theorems on the general operator: equations (1) to (4), multi-head attention (A to C) and its similarities (S).

Expected values come from the slow reference, or from the formula in Ji and Xie's own layout, with tokens as columns.
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
    slow_general_attention,
)
from clearhead_lab.theorems.symmetry.forms import (
    SLIDES,
    WANG,
    Weights,
    attention,
    learned_query_attention,
    multi_head_attention,
    random_weights,
    self_attention,
    shape_error,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

QUERIES, KEYS = 7, 11
QUERY_WIDTH, KEY_WIDTH, VALUE_WIDTH = 13, 17, 19
HEAD, OUT = 5, 3


def _operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (QUERIES, QUERY_WIDTH), (KEYS, KEY_WIDTH), (KEYS, VALUE_WIDTH)
    q, k, v = (normal_tensor(*size, seed=seed, dtype=dtype) for seed, size in enumerate(sizes))
    return q, k, v


def _tokens(dtype: torch.dtype) -> Tensor:
    return _operands(dtype)[1]


def _weights(dtype: torch.dtype) -> Weights:
    widths = QUERY_WIDTH, KEY_WIDTH, VALUE_WIDTH
    return random_weights(widths, key_width=HEAD, value_width=OUT, seed=1, dtype=dtype)


def _self_weights(dtype: torch.dtype, *, key_width: int = HEAD, value_width: int = OUT, seed: int = 2) -> Weights:
    return random_weights((KEY_WIDTH,) * 3, key_width=key_width, value_width=value_width, seed=seed, dtype=dtype)


def _equation_2(q: Tensor, k: Tensor, v: Tensor, w: Weights, *, softmax_axis: int = 0) -> Tensor:
    """Return O = W_v V softmax((W_k K)^T W_q Q) with tokens as columns; axis 0, the keys, is the right one."""
    scores = (w.w_k.T @ k.T).T @ (w.w_q.T @ q.T)
    return (w.w_v.T @ v.T @ torch.softmax(scores, dim=softmax_axis)).T


def _unprojected(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys of the same width, and values."""
    sizes = (QUERIES, HEAD), (KEYS, HEAD), (KEYS + 2, OUT)
    q, k, v = (normal_tensor(n, width, seed=5 + n, dtype=dtype) for n, width in sizes)
    return q, k, v[:KEYS]


def _sum_and_matrix_form(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    loop = slow_general_attention(q @ w.w_q, k @ w.w_k, v @ w.w_v)
    return max(relative_residual(_equation_2(q, k, v, w), loop), relative_residual(attention(q, k, v, w), loop))


def _softmax_over_queries(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    return relative_residual(_equation_2(q, k, v, w, softmax_axis=1), attention(q, k, v, w))


def _normaliser(dtype: torch.dtype, *, shared: bool) -> float:
    """Compare the sums of equation (1) divided by C_j, or by the mean C of all queries, with the operator."""
    q, k, v = _unprojected(dtype)
    f = (q @ k.T).exp()
    C = f.sum(dim=1, keepdim=True)
    return relative_residual(f @ v / (C.mean() if shared else C), general_attention(q, k, v))


def _one_output_per_query(dtype: torch.dtype) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    out = attention(q, k, v, w)
    query_by_query = torch.cat([attention(q[j : j + 1], k, v, w) for j in range(QUERIES)])
    fewer_keys = attention(q, k[:-2], v[:-2], w)
    return sum(shape_error(x, (QUERIES, OUT)) for x in (out, fewer_keys)) + relative_residual(out, query_by_query)


def _queries_and_keys_exchanged(dtype: torch.dtype) -> float:
    q, k, v = _unprojected(dtype)
    return shape_error(general_attention(k, q, v[:QUERIES]), (QUERIES, OUT))


def _constant_values(dtype: torch.dtype, *, over_queries: bool) -> float:
    (q, k, v), w = _operands(dtype), _weights(dtype)
    constant = v[:1].expand_as(v)
    out = _equation_2(q, k, constant, w, softmax_axis=1) if over_queries else attention(q, k, constant, w)
    return relative_residual(out, (constant @ w.w_v)[:1].expand(QUERIES, OUT))


def _default_scale(dtype: torch.dtype, *, scale: float) -> float:
    q, k, v = _unprojected(dtype)
    return relative_residual(general_attention(q, k, v), general_attention(q, k, v, similarity=gaussian(scale=scale)))


def _outside_range(dtype: torch.dtype, similarity: Similarity) -> float:
    """Return how far outputs leave the range of the transformed values in each coordinate, relative to the range."""
    q, k, v = _unprojected(dtype)
    g = v.tanh()
    out = general_attention(q, k, v, similarity=similarity, value=torch.tanh)
    low, high = g.amin(dim=0), g.amax(dim=0)
    return float((torch.maximum(out - high, low - out) / (high - low)).clamp_min(0).max())


def _outside_range_if_positive(dtype: torch.dtype) -> float:
    return max(_outside_range(dtype, f) for f in (gaussian(), gaussian_distance(bandwidth=2.0)))


def _outside_range_if_signed(dtype: torch.dtype) -> float:
    w = 3 * normal_tensor(2 * HEAD, seed=4, dtype=dtype)
    return min(_outside_range(dtype, f) for f in (dot_product(), concatenation(w)))


def _self_attention(dtype: torch.dtype, *, reversed_keys: bool) -> float:
    x, w = _tokens(dtype), _self_weights(dtype)
    keys = x.flip(1) if reversed_keys else x
    return relative_residual(self_attention(x, w), _equation_2(x, keys, x, w))


def _learned_queries(dtype: torch.dtype, *, projected_again: bool) -> float:
    """Compare learned queries equal to X_Q W_q with equation (2) for several m; or project them once more."""
    x, w = _tokens(dtype), _self_weights(dtype)
    query_tokens = normal_tensor(QUERIES, KEY_WIDTH, seed=6, dtype=dtype)
    learned = query_tokens @ w.w_q
    if projected_again:
        learned = learned @ normal_tensor(HEAD, HEAD, seed=7, dtype=dtype)
    errors = []
    for m in (KEYS, HEAD, 2):
        out = learned_query_attention(x[:m], learned, w)
        expected = _equation_2(query_tokens, x[:m], x[:m], w)
        errors.append(shape_error(out, (QUERIES, OUT)) + relative_residual(out, expected))
    return max(errors)


def _head_blocks(dtype: torch.dtype, *, reordered: bool) -> float:
    """Compare heads of key widths 5, 2, 7 and value widths 3, 2, 11 with the sum over their blocks of W_o."""
    x = _tokens(dtype)
    widths = ((5, 3), (2, 2), (7, 11))
    heads = [_self_weights(dtype, key_width=k, value_width=v, seed=3 + i) for i, (k, v) in enumerate(widths)]
    value_widths = [value for _, value in widths]
    w_o = normal_tensor(sum(value_widths), 13, seed=8, dtype=dtype)
    outputs = [
        _equation_2(x, x, x, head) @ rows for head, rows in zip(heads, w_o.split_with_sizes(value_widths), strict=True)
    ]
    actual = multi_head_attention(x, heads[::-1] if reordered else heads, w_o)
    return relative_residual(actual, torch.stack(outputs).sum(dim=0))


def _one_head(dtype: torch.dtype, *, shifted: bool) -> float:
    x, w = _tokens(dtype), _self_weights(dtype)
    w_o = torch.eye(OUT, dtype=dtype)
    actual = multi_head_attention(x, [w], w_o.roll(1, dims=0) if shifted else w_o)
    return relative_residual(actual, _equation_2(x, x, x, w))


def _repeated_tokens(dtype: torch.dtype, *, normalised: bool) -> float:
    q, k, v = _unprojected(dtype)
    w = normal_tensor(2 * HEAD, seed=4, dtype=dtype)
    if not normalised:
        return relative_residual(torch.cat([q @ k.T] * 2, dim=1) @ v.repeat(2, 1), (q @ k.T) @ v)
    similarities = (gaussian(), gaussian_distance(bandwidth=2.0), dot_product(), concatenation(w))
    return max(
        relative_residual(
            general_attention(q, k.repeat(2, 1), v.repeat(2, 1), similarity=f), general_attention(q, k, v, similarity=f)
        )
        for f in similarities
    )


def _dot_product_normaliser(dtype: torch.dtype, *, by_sum: bool) -> float:
    q, k, v = _unprojected(dtype)
    f = q @ k.T
    C = f.sum(dim=1, keepdim=True) if by_sum else KEYS
    return relative_residual(f @ v / C, general_attention(q, k, v, similarity=dot_product()))


def _value_map(dtype: torch.dtype, *, linear: bool) -> float:
    q, k, v = _unprojected(dtype)
    w = normal_tensor(OUT, OUT + 1, seed=11, dtype=dtype)

    def g(x: Tensor) -> Tensor:
        return x @ w if linear else torch.tanh(x @ w)

    return relative_residual(general_attention(q, k, v, value=g), g(general_attention(q, k, v)))


OPERATOR_THEOREMS = (
    Theorem("A1", "the weighted sum and the matrix form define the same operator", _sum_and_matrix_form,
            "softmax over the queries", _softmax_over_queries, f"{SLIDES}, equations (1) and (2)"),
    Theorem("A2", "the normaliser depends on the query: it is C_j, where the slide prints C",
            partial(_normaliser, shared=False),
            "the same C for all queries", partial(_normaliser, shared=True), f"{SLIDES}, equation (1)"),
    Theorem("A3", "there is one output per query for any number of keys, and it does not depend on the other queries",
            _one_output_per_query,
            "queries and keys exchanged", _queries_and_keys_exchanged, f"{SLIDES}, equation (2)"),
    Theorem("A4", "the weights of a query sum to one, so constant values are returned unchanged",
            partial(_constant_values, over_queries=False),
            "softmax over the queries", partial(_constant_values, over_queries=True), f"{SLIDES}, equation (2)"),
    Theorem("A5", "by default there is no scale, as in the slides", partial(_default_scale, scale=1.0),
            "scale 1/sqrt(d)", partial(_default_scale, scale=HEAD**-0.5), f"{SLIDES}, equation (2)"),
    Theorem("A6", "outputs lie within the range of the transformed values if f >= 0 and C is the sum of f",
            _outside_range_if_positive,
            "dot product and concatenation, divided by m", _outside_range_if_signed,
            f"{SLIDES}, equation (1); {WANG}"),
    Theorem("B1", "self-attention is attention with Q = K = V = X", partial(_self_attention, reversed_keys=False),
            "keys with reversed features", partial(_self_attention, reversed_keys=True), f"{SLIDES}, equation (3)"),
    Theorem("B2", "a learned query replaces W_q Q and sets the number of outputs, for any number of tokens m",
            partial(_learned_queries, projected_again=False),
            "learned query projected again", partial(_learned_queries, projected_again=True),
            f"{SLIDES}, equation (4)"),
    Theorem("C1", "multi-head attention is the sum of its heads, each times its own rows of W_o, for any head widths",
            partial(_head_blocks, reordered=False),
            "heads in another order", partial(_head_blocks, reordered=True), f"{SLIDES}, multi-head attention"),
    Theorem("C2", "one head with W_o = I is attention without heads", partial(_one_head, shifted=False),
            "W_o a cyclic shift", partial(_one_head, shifted=True), f"{SLIDES}, multi-head attention"),
)  # fmt: skip

SIMILARITY_THEOREMS = (
    Theorem("S1", "with its own normaliser, every similarity gives the same output if all tokens are repeated",
            partial(_repeated_tokens, normalised=True),
            "dot product without normaliser", partial(_repeated_tokens, normalised=False), WANG),
    Theorem("S2", "the dot product is divided by the number of keys, because its sum may be zero",
            partial(_dot_product_normaliser, by_sum=False),
            "divided by its sum", partial(_dot_product_normaliser, by_sum=True), WANG),
    Theorem("S3", "a linear g may be applied before or after attention", partial(_value_map, linear=True),
            "g = tanh of a linear map", partial(_value_map, linear=False), f"{SLIDES}, equation (1)"),
)  # fmt: skip
