"""Extensions of theorem 1 to other operators (T6), and its limits (T7).

The control of each theorem breaks the symmetry with the smallest change: position codes in place of one code for all
tokens, a causal mask in place of one computed from the tokens.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import dropout, gelu, layer_norm

from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian,
    gaussian_distance,
    general_attention,
)
from clearhead.theories.symmetry.groups import permutations
from clearhead.theories.symmetry.measure import SymmetryReport, equivariance, invariance
from clearhead_lab.theorems.symmetry.forms import (
    SLIDES,
    WANG,
    Weights,
    multi_head_attention,
    random_weights,
    self_attention,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor

WIDTH, HEAD, OUT = 13, 5, 3
TOKEN_COUNTS = (5, 11)
"""All 120 permutations of 5 tokens are measured, and random ones of 11."""

Layer = Callable[[Tensor], Tensor]


def _tokens(n: int, dtype: torch.dtype) -> Tensor:
    return normal_tensor(n, WIDTH, seed=30 + n, dtype=dtype)


def _weights(dtype: torch.dtype, *, key_width: int = HEAD, value_width: int = OUT, seed: int = 31) -> Weights:
    return random_weights((WIDTH,) * 3, key_width=key_width, value_width=value_width, seed=seed, dtype=dtype)


def _reports(layer: Layer, dtype: torch.dtype) -> list[SymmetryReport]:
    return [equivariance(layer, _tokens(n, dtype), permutations(n)) for n in TOKEN_COUNTS]


def _largest_error(layer: Callable[[torch.dtype], Layer], dtype: torch.dtype) -> float:
    """Return the larger equivariance error of both token counts, for a layer that is equivariant."""
    return max(report.largest for report in _reports(layer(dtype), dtype))


def _smallest_error(layer: Callable[[torch.dtype], Layer], dtype: torch.dtype) -> float:
    """Return the smaller equivariance error of both token counts, for a layer that is not equivariant."""
    return min(report.largest for report in _reports(layer(dtype), dtype))


def _similarities(dtype: torch.dtype) -> tuple[Similarity, ...]:
    w = _weights(dtype)
    theta, phi = (lambda x: x @ w.w_q), (lambda x: x @ w.w_k)
    return (
        gaussian(scale=WIDTH**-0.5),
        embedded_gaussian(theta, phi),
        dot_product(theta, phi),
        concatenation(normal_tensor(2 * HEAD, seed=32, dtype=dtype), theta, phi),
        gaussian_distance(bandwidth=2.0, theta=theta, phi=phi),
    )


def _similarity_reports(dtype: torch.dtype) -> list[SymmetryReport]:
    def layer(x: Tensor, similarity: Similarity) -> Tensor:
        return general_attention(x, x, x, similarity=similarity)

    layers = [partial(layer, similarity=similarity) for similarity in _similarities(dtype)]
    return [report for layer in layers for report in _reports(layer, dtype)]


def _with_value_map(dtype: torch.dtype, *, g: Layer) -> Layer:
    return lambda x: general_attention(x, x, x, similarity=gaussian(scale=WIDTH**-0.5), value=g)


def _cumulative_sum(x: Tensor) -> Tensor:
    return x.cumsum(dim=-2)


def _multi_head(dtype: torch.dtype, *, w_o_per_position: bool) -> Layer:
    """Return attention of three heads of unequal widths, with one W_o or with another W_o at each position."""
    heads = [_weights(dtype, key_width=key, value_width=key + 2, seed=33 + key) for key in (2, 3, 5)]
    w_o = normal_tensor(TOKEN_COUNTS[-1], 16, OUT, seed=34, dtype=dtype)
    if not w_o_per_position:
        return lambda x: multi_head_attention(x, heads, w_o[0])

    def layer(x: Tensor) -> Tensor:
        concatenated = multi_head_attention(x, heads, torch.eye(16, dtype=dtype))
        return (concatenated.unsqueeze(1) @ w_o[: x.shape[0]]).squeeze(1)

    return layer


def _block(dtype: torch.dtype, *, mlp_over_tokens: bool) -> Layer:
    """Return x + attention(LayerNorm(x)) followed by x + MLP(LayerNorm(x)), the MLP over features or over tokens."""
    w = _weights(dtype, value_width=WIDTH)
    up, down = (normal_tensor(*size, seed=35, dtype=dtype) / 4 for size in ((WIDTH, 29), (29, WIDTH)))

    def layer(x: Tensor) -> Tensor:
        x = x + self_attention(layer_norm(x, (WIDTH,)), w)
        normed = layer_norm(x, (WIDTH,))
        if mlp_over_tokens:
            return x + gelu(normal_tensor(x.shape[0], x.shape[0], seed=36, dtype=dtype) @ normed)
        return x + gelu(normed @ up) @ down

    return layer


def _pooled_output(dtype: torch.dtype, *, first: bool) -> float:
    """Measure the invariance of the mean output, or of the first output."""
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        out = self_attention(x, w)
        return out[0] if first else out.mean(dim=0)

    errors = [invariance(layer, _tokens(n, dtype), permutations(n)).largest for n in TOKEN_COUNTS]
    return min(errors) if first else max(errors)


def _with_codes(dtype: torch.dtype, *, per_position: bool) -> Layer:
    codes, w = normal_tensor(TOKEN_COUNTS[-1], WIDTH, seed=37, dtype=dtype), _weights(dtype)
    return lambda x: self_attention(x + (codes[: x.shape[0]] if per_position else codes[:1]), w)


def _masked(dtype: torch.dtype, *, causal: bool) -> Layer:
    """Return attention under a causal mask, or one that shows each token those with no smaller first feature."""
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        n = x.shape[0]
        mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else x[:, :1] <= x[:, 0]
        return self_attention(x, w, mask=mask)

    return layer


def _with_dropout(dtype: torch.dtype, *, training: bool) -> Layer:
    w = _weights(dtype)
    return lambda x: dropout(self_attention(x, w), 0.1, training=training)


def _training_dropout_error(dtype: torch.dtype) -> float:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _smallest_error(partial(_with_dropout, training=True), dtype)


def _biased(dtype: torch.dtype, *, by_position: bool) -> Layer:
    """Return attention with a bias of minus the distance between positions, or between tokens."""
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        position = torch.arange(x.shape[0], dtype=dtype)
        by_token = (x.unsqueeze(1) - x).square().mean(dim=-1)
        distance = (position[:, None] - position).abs() if by_position else by_token
        return self_attention(x, w, bias=-distance)

    return layer


_EXTENDED = f"{SLIDES}, theorem 1 (extended here)"
_LIMITS = f"{SLIDES}, theorem 1 (its limits shown here)"

EXTENSION_THEOREMS = (
    Theorem("T6a", "attention is equivariant for every similarity: Gaussian, embedded, dot, concatenation, distance",
            lambda dtype: max(report.largest for report in _similarity_reports(dtype)),
            "outputs in another order", lambda dtype: min(report.control for report in _similarity_reports(dtype)),
            f"{_EXTENDED}; {WANG}"),
    Theorem("T6b", "attention is equivariant for any g that is applied to each value separately",
            partial(_largest_error, partial(_with_value_map, g=torch.tanh)),
            "g a cumulative sum over the tokens", partial(_smallest_error, partial(_with_value_map, g=_cumulative_sum)),
            _EXTENDED),
    Theorem("T6c", "multi-head attention is equivariant for heads of unequal widths and one W_o",
            partial(_largest_error, partial(_multi_head, w_o_per_position=False)),
            "another W_o at each position", partial(_smallest_error, partial(_multi_head, w_o_per_position=True)),
            _EXTENDED),
    Theorem("T6d", "a block with LayerNorm, MLP and residual sums is equivariant",
            partial(_largest_error, partial(_block, mlp_over_tokens=False)),
            "MLP across tokens", partial(_smallest_error, partial(_block, mlp_over_tokens=True)), _EXTENDED),
    Theorem("T6e", "the mean of the outputs of self-attention is invariant", partial(_pooled_output, first=False),
            "the first output in place of the mean", partial(_pooled_output, first=True), _EXTENDED),
    Theorem("T7a", "adding the same code to all tokens keeps equivariance; position codes break it",
            partial(_largest_error, partial(_with_codes, per_position=False)),
            "position codes", partial(_smallest_error, partial(_with_codes, per_position=True)), _LIMITS),
    Theorem("T7b", "a mask computed from the tokens keeps equivariance; a causal mask breaks it",
            partial(_largest_error, partial(_masked, causal=False)),
            "causal mask", partial(_smallest_error, partial(_masked, causal=True)), _LIMITS),
    Theorem("T7c", "dropout in evaluation mode keeps equivariance; dropout in training mode breaks it",
            partial(_largest_error, partial(_with_dropout, training=False)),
            "dropout in training mode", _training_dropout_error, _LIMITS),
    Theorem("T7d", "a bias computed from the tokens keeps equivariance; a relative position bias breaks it",
            partial(_largest_error, partial(_biased, by_position=False)),
            "relative position bias", partial(_smallest_error, partial(_biased, by_position=True)), _LIMITS),
)  # fmt: skip
