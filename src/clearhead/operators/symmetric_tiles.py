r"""Symmetric attention in tiles of plain torch, for any device and dtype, by the formulas of the compiled kernel.

With c_i = scale |k_i|^2 / 2, an exponential of scores is :math:`e^{s_{ij}} = e^{c_i} G_{ij} e^{c_j}` with
:math:`G_{ij} = e^{s_{ij} - c_i - c_j} = e^{-\text{scale} |k_i - k_j|^2 / 2}`, at most 1 and the same for (i, j) and for
(j, i). The factor of row i cancels in the softmax, so

.. math:: o_i = \frac{\sum_j G_{ij} w_j v_j}{Z_i}, \qquad Z_i = \sum_j G_{ij} w_j, \qquad w_j = e^{c_j - \text{middle}}

for any `middle`, and nothing overflows. Each unordered pair of tiles takes one product and one exponential. The
gradient has the same symmetry: with A = dO / Z, B = w v and :math:`a_i = A_i \cdot o_i`,

.. math:: dv_i = w_i \sum_j G_{ij} A_j, \quad dk_i = \text{scale} \sum_j T_{ij} k_j, \quad
    T_{ij} = G_{ij} (A_i \cdot B_j + A_j \cdot B_i - a_i w_j - a_j w_i)

Heads whose norms spread too widely for this are computed row by row. They are rare, so that code is short rather than
fast; its gradient is written out, because torch does not record operations inside a custom operator.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.kernels.calls import Attended, empty_by_token
from clearhead.operators.softmax import fused_attention
from clearhead.shapes import Bool, Float

# Exponentials are multiplied by 2^30, so that those far below a row's largest keep all their bits in single precision.
_LIFT = 2.0**30
# Heads whose c spreads by more than this, or with rows whose weights sum to less, are computed row by row.
_MAX_SPREAD = 75.0
_MIN_TOTAL = 2.0**-70
# The number of scores that fit in the cache.
_SCORES_PER_TILE = 1 << 18
_MIN_TILE = 128
_ROWS_PER_BLOCK = 256


class _Weighted:
    """The keys of all heads, their c and weights, and G for pairs of tiles."""

    def __init__(self, k: Tensor, key_mask: Tensor | None, scale: float) -> None:
        self.k, self.scaled = k, k * scale
        self.c = k.square().sum(dim=-1) * (scale / 2)
        visible = torch.ones_like(self.c, dtype=torch.bool)
        if key_mask is not None:
            visible = key_mask.unsqueeze(1).expand_as(self.c)
        largest = self.c.masked_fill(~visible, -torch.inf).amax(dim=-1, keepdim=True)
        smallest = self.c.masked_fill(~visible, torch.inf).amin(dim=-1, keepdim=True)
        nonempty = visible.any(dim=-1, keepdim=True)
        self.nonempty = nonempty.squeeze(-1)
        self.too_wide = (nonempty & ~(largest - smallest <= _MAX_SPREAD)).squeeze(-1)
        middle = torch.where(nonempty & (largest < torch.inf), smallest + (largest - smallest) / 2, 0)
        self.weight = torch.where(visible, (self.c - middle).exp(), 0)
        self.least_weight = torch.where(nonempty, smallest - middle, 0).exp().squeeze(-1)

    def representable(self, x: Tensor) -> Tensor:
        """Return, for each head, whether the entries of x stay above the smallest normal number when weighted."""
        largest = x.abs().flatten(2).amax(dim=-1) if x.shape[-1] else torch.zeros_like(self.least_weight)
        return (largest == 0) | (largest * self.least_weight >= torch.finfo(x.dtype).tiny * _LIFT)

    def pairs(self) -> Iterator[tuple[slice, slice]]:
        b, h, n, _ = self.k.shape
        size = max(_MIN_TILE, int(math.sqrt(_SCORES_PER_TILE / max(b * h, 1))))
        tiles = [slice(start, min(start + size, n)) for start in range(0, n, size)]
        return ((first, second) for i, first in enumerate(tiles) for second in tiles[i:])

    def gaussian(self, first: slice, second: slice) -> Tensor:
        g = self.scaled[..., first, :] @ self.k[..., second, :].mT
        # In this order close tokens lose no digits: both differences are small.
        return g.sub_(self.c[..., first, None]).sub_(self.c[..., None, second]).add_(math.log(_LIFT)).exp_()


def tiles_forward(
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], *, key_mask: Bool[Tensor, "b n"] | None, scale: float
) -> Attended:
    """Return symmetric attention, the normalisers of its rows, and which heads were computed row by row."""
    weighted = _Weighted(k, key_mask, scale)
    values = v * weighted.weight.unsqueeze(-1)
    sums, totals = torch.zeros_like(v), torch.zeros_like(weighted.c)
    for first, second in weighted.pairs():
        g = weighted.gaussian(first, second)
        sums[..., first, :] += g @ values[..., second, :]
        totals[..., first] += (g @ weighted.weight[..., second, None]).squeeze(-1)
        if first != second:
            sums[..., second, :] += g.mT @ values[..., first, :]
            totals[..., second] += (g.mT @ weighted.weight[..., first, None]).squeeze(-1)
    in_range = ((totals >= _MIN_TOTAL) & (totals < torch.inf)).all(dim=-1) & sums.isfinite().all(dim=-1).all(dim=-1)
    share = torch.where(weighted.nonempty.unsqueeze(-1), 1 / totals, 0)
    out = empty_by_token(v).copy_(sums * share.unsqueeze(-1))
    by_row = weighted.nonempty & (weighted.too_wide | ~in_range | ~weighted.representable(v))
    if by_row.any():
        out[by_row] = _rows_forward(k[by_row], v[by_row], _mask_of_heads(key_mask, by_row), scale)
    return Attended(out, totals, by_row)


def tiles_backward(
    gradient: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    attended: Attended,
    *,
    key_mask: Bool[Tensor, "b n"] | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradients for k and v."""
    weighted = _Weighted(k, key_mask, scale)
    # Without the lift, so that small gradients stay above zero.
    share = torch.where(weighted.nonempty.unsqueeze(-1), _LIFT / attended.totals, 0).unsqueeze(-1)
    a, b = gradient * share, v * weighted.weight.unsqueeze(-1)
    a_dot_o, w = (a * attended.out).sum(dim=-1), weighted.weight
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    left, right = torch.cat([a, b], dim=-1), torch.cat([b, a], dim=-1)
    for first, second in weighted.pairs():
        g = weighted.gaussian(first, second)
        t = left[..., first, :] @ right[..., second, :].mT
        t -= a_dot_o[..., first, None] * w[..., None, second] + w[..., first, None] * a_dot_o[..., None, second]
        t *= g
        dv[..., first, :] += g @ a[..., second, :]
        dk[..., first, :] += t @ k[..., second, :]
        if first != second:
            dv[..., second, :] += g.mT @ a[..., first, :]
            dk[..., second, :] += t.mT @ k[..., first, :]
    dk, dv = empty_by_token(k).copy_(dk * (scale / _LIFT)), empty_by_token(v).copy_(dv * w.unsqueeze(-1) / _LIFT)
    finite = dk.isfinite().flatten(2).all(dim=-1) & dv.isfinite().flatten(2).all(dim=-1)
    by_row = attended.by_row | ~finite | ~weighted.representable(gradient / k.shape[-2])
    if by_row.any():
        operands = (x[by_row] for x in (gradient, k, v, attended.out))
        dk[by_row], dv[by_row] = _rows_backward(*operands, key_mask=_mask_of_heads(key_mask, by_row), scale=scale)
    return dk, dv


def _mask_of_heads(key_mask: Tensor | None, heads: Tensor) -> Tensor | None:
    """Return the key mask of each selected head, for a selection (b, h)."""
    return None if key_mask is None else key_mask.unsqueeze(1).expand(-1, heads.shape[1], -1)[heads]


def _rows_forward(k: Tensor, v: Tensor, key_mask: Tensor | None, scale: float) -> Tensor:
    """Return symmetric attention by torch's fused kernel, for k (h, n, d) and key_mask (h, n)."""
    mask = None if key_mask is None else key_mask.unsqueeze(-2).expand(-1, k.shape[-2], -1)
    return fused_attention(k, k, v, mask=mask, scale=scale)


def _rows_backward(
    gradient: Tensor, k: Tensor, v: Tensor, out: Tensor, *, key_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients for k and v by the textbook formula, a block of rows at a time."""
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, k.shape[-2], _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        scores = (k[:, rows] * scale) @ k.mT
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask.unsqueeze(-2), -torch.inf)
        weights = scores.softmax(dim=-1)
        dv += weights.mT @ gradient[:, rows]
        d_weights = gradient[:, rows] @ v.mT - (gradient[:, rows] * out[:, rows]).sum(dim=-1, keepdim=True)
        d_scores = weights * d_weights * scale
        dk[:, rows] += d_scores @ k
        dk += d_scores.mT @ k[:, rows]
    return dk, dv
