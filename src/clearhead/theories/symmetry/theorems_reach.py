"""How far theorem 1 reaches, and what ends it (rows T6 and T7).

What breaks a symmetry is the control of its row, beside the nearest thing that keeps it: position codes beside one code
for all tokens, a causal mask beside one that reads the tokens.
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
from clearhead.theories.statement import Statement, drawn
from clearhead.theories.symmetry.forms import Weights, drawn_weights, multi_head, self_attention
from clearhead.theories.symmetry.groups import permutations
from clearhead.theories.symmetry.measure import SymmetryReport, equivariance, invariance
from clearhead.theories.symmetry.statement import SLIDES, WANG

__all__ = ["REACH"]

WIDTH, HEAD, OUT = 13, 5, 3
COUNTS = (5, 11)
"""Tokens: of 5 all 120 permutations are taken, of 11 some are drawn."""

Layer = Callable[[Tensor], Tensor]


def _tokens(n: int, dtype: torch.dtype) -> Tensor:
    return drawn(n, WIDTH, seed=30 + n, dtype=dtype)


def _weights(dtype: torch.dtype, *, key: int = HEAD, value: int = OUT, seed: int = 31) -> Weights:
    return drawn_weights((WIDTH,) * 3, key=key, value=value, seed=seed, dtype=dtype)


def _reports(layer: Layer, dtype: torch.dtype) -> list[SymmetryReport]:
    return [equivariance(layer, _tokens(n, dtype), permutations(n)) for n in COUNTS]


def _kept(layer: Callable[[torch.dtype], Layer], dtype: torch.dtype) -> float:
    """The largest error, where there should be none."""
    return max(report.largest for report in _reports(layer(dtype), dtype))


def _broken(layer: Callable[[torch.dtype], Layer], dtype: torch.dtype) -> float:
    """The largest error where there should be one, the smaller of both numbers of tokens."""
    return min(report.largest for report in _reports(layer(dtype), dtype))


def _similarities(dtype: torch.dtype) -> tuple[Similarity, ...]:
    w = _weights(dtype)
    theta, phi = (lambda x: x @ w.w_q), (lambda x: x @ w.w_k)
    return (
        gaussian(scale=WIDTH**-0.5),
        embedded_gaussian(theta, phi),
        dot_product(theta, phi),
        concatenation(drawn(2 * HEAD, seed=32, dtype=dtype), theta, phi),
        gaussian_distance(bandwidth=2.0, theta=theta, phi=phi),
    )


def _each_similarity(dtype: torch.dtype) -> list[SymmetryReport]:
    layers = [partial(_similar, similarity=similarity) for similarity in _similarities(dtype)]
    return [report for layer in layers for report in _reports(layer, dtype)]


def _similar(x: Tensor, similarity: Similarity) -> Tensor:
    return general_attention(x, x, x, similarity=similarity)


def _mapped(dtype: torch.dtype, *, value: Layer) -> Layer:
    return lambda x: general_attention(x, x, x, similarity=gaussian(scale=WIDTH**-0.5), value=value)


def _heads(dtype: torch.dtype, *, own: bool) -> Layer:
    """Three heads of unequal widths; `own` gives every place a W_o of its own."""
    heads = [_weights(dtype, key=key, value=key + 2, seed=33 + key) for key in (2, 3, 5)]
    w_o = drawn(COUNTS[-1], 16, OUT, seed=34, dtype=dtype)
    if not own:
        return lambda x: multi_head(x, heads, w_o[0])
    return lambda x: (multi_head(x, heads, torch.eye(16, dtype=dtype)).unsqueeze(1) @ w_o[: x.shape[0]]).squeeze(1)


def _block(dtype: torch.dtype, *, across: bool) -> Layer:
    """Attention, then an MLP, each after LayerNorm and added to its input; the MLP on features, or `across` tokens."""
    w = _weights(dtype, value=WIDTH)
    up, down = (drawn(*size, seed=35, dtype=dtype) / 4 for size in ((WIDTH, 29), (29, WIDTH)))

    def layer(x: Tensor) -> Tensor:
        x = x + self_attention(layer_norm(x, (WIDTH,)), w)
        normal = layer_norm(x, (WIDTH,))
        if across:
            over_tokens = drawn(x.shape[0], x.shape[0], seed=36, dtype=dtype)
            return x + gelu(over_tokens @ normal)
        return x + gelu(normal @ up) @ down

    return layer


def _read_out(dtype: torch.dtype, *, first: bool) -> float:
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        out = self_attention(x, w)
        return out[0] if first else out.mean(dim=0)

    reports = [invariance(layer, _tokens(n, dtype), permutations(n)) for n in COUNTS]
    return min(r.largest for r in reports) if first else max(r.largest for r in reports)


def _coded(dtype: torch.dtype, *, places: bool) -> Layer:
    codes, w = drawn(COUNTS[-1], WIDTH, seed=37, dtype=dtype), _weights(dtype)
    return lambda x: self_attention(x + (codes[: x.shape[0]] if places else codes[:1]), w)


def _masked(dtype: torch.dtype, *, causal: bool) -> Layer:
    """A causal mask, or one that shows each token those whose first feature is no smaller."""
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        n = x.shape[0]
        mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else x[:, :1] <= x[:, 0]
        return self_attention(x, w, mask=mask)

    return layer


def _dropped(dtype: torch.dtype, *, training: bool) -> Layer:
    w = _weights(dtype)
    return lambda x: dropout(self_attention(x, w), 0.1, training=training)


def _with_dropout(dtype: torch.dtype) -> float:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _broken(partial(_dropped, training=True), dtype)


def _biased(dtype: torch.dtype, *, places: bool) -> Layer:
    """A bias by the distance of the places, or of the tokens."""
    w = _weights(dtype)

    def layer(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[0], dtype=dtype)
        far = (place[:, None] - place).abs() if places else (x.unsqueeze(1) - x).square().mean(dim=-1)
        return self_attention(x, w, bias=-far)

    return layer


def _cumulated(x: Tensor) -> Tensor:
    return x.cumsum(dim=-2)


_BEYOND = f"{SLIDES}, theorem 1 (extended here)"
_ENDS = f"{SLIDES}, theorem 1 (its limits shown here)"

REACH = (
    Statement("T6a", "equivariance holds for every similarity: Gaussian, embedded, dot, concatenation, distance",
              lambda dtype: max(report.largest for report in _each_similarity(dtype)),
              "outputs in another order", lambda dtype: min(report.control for report in _each_similarity(dtype)),
              f"{_BEYOND}; {WANG}"),
    Statement("T6b", "equivariance holds for any g that acts on each value alone",
              partial(_kept, partial(_mapped, value=torch.tanh)),
              "g a running sum over tokens", partial(_broken, partial(_mapped, value=_cumulated)), _BEYOND),
    Statement("T6c", "equivariance holds for heads of unequal widths under one W_o",
              partial(_kept, partial(_heads, own=False)),
              "a W_o for each place", partial(_broken, partial(_heads, own=True)), _BEYOND),
    Statement("T6d", "equivariance holds for a block with LayerNorm, MLP and residual sums",
              partial(_kept, partial(_block, across=False)),
              "MLP across tokens", partial(_broken, partial(_block, across=True)), _BEYOND),
    Statement("T6e", "the mean of self-attention's outputs is invariant", partial(_read_out, first=False),
              "the first output in place of the mean", partial(_read_out, first=True), _BEYOND),
    Statement("T7a", "one code for all tokens keeps equivariance, position codes end it",
              partial(_kept, partial(_coded, places=False)),
              "position codes", partial(_broken, partial(_coded, places=True)), _ENDS),
    Statement("T7b", "a mask read from the tokens keeps it, a causal mask ends it",
              partial(_kept, partial(_masked, causal=False)),
              "causal mask", partial(_broken, partial(_masked, causal=True)), _ENDS),
    Statement("T7c", "dropout at rest keeps it, dropout in training ends it",
              partial(_kept, partial(_dropped, training=False)), "dropout in training", _with_dropout, _ENDS),
    Statement("T7d", "a bias read from the tokens keeps it, a relative position bias ends it",
              partial(_kept, partial(_biased, places=False)),
              "relative position bias", partial(_broken, partial(_biased, places=True)), _ENDS),
)  # fmt: skip
