r"""Symmetric attention in tiles of plain torch, for any device and dtype: the kernel's formulas, readable.

With c_i = scale |k_i|^2 / 2, an exponential of scores is :math:`e^{s_{ij}} = e^{c_i} G_{ij} e^{c_j}` with
:math:`G_{ij} = e^{s_{ij} - c_i - c_j} = e^{-\text{scale} |k_i - k_j|^2 / 2}`, at most 1 and the same for (i, j) and for
(j, i). The factor of row i cancels in the softmax, so

.. math:: o_i = \frac{\sum_j G_{ij} w_j v_j}{Z_i}, \qquad Z_i = \sum_j G_{ij} w_j, \qquad w_j = e^{c_j - \text{middle}}

for any `middle`, and nothing overflows. Each unordered pair of tiles takes one product and one exponential. The
gradient is as symmetric: with A = dO / Z, B = w v and :math:`a_i = A_i \cdot o_i`,

.. math:: dv_i = w_i \sum_j G_{ij} A_j, \quad dk_i = \text{scale} \sum_j T_{ij} k_j, \quad
    T_{ij} = G_{ij} (A_i \cdot B_j + A_j \cdot B_i - a_i w_j - a_j w_i)
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.kernels.calls import Attended, beside_tokens
from clearhead.operators.plain_heads import plain, plain_backward, seen_at
from clearhead.shapes import Bool, Float

__all__ = ["tiles_backward", "tiles_forward"]

# Larger by 2^30 than they say, exponentials far below a row's largest keep all their bits in single precision.
_LIFTED = 2.0**30
# Heads whose norms spread by more nats than this, or with rows whose weights add up to less, take the plain way.
_WIDEST = 75.0
_LEAST_TOTAL = 2.0**-70
# So many scores stay in cache.
_SCORES_AT_ONCE = 1 << 18
_SMALLEST_TILE = 128


class _Weighted:
    """The keys of all heads, their norms and weights, and the exponentials of pairs of tiles."""

    def __init__(self, k: Tensor, seen: Tensor | None, scale: float) -> None:
        self.k, self.scaled = k, k * scale
        self.c = k.square().sum(dim=-1) * (scale / 2)
        there = torch.ones_like(self.c, dtype=torch.bool) if seen is None else seen.unsqueeze(1).expand_as(self.c)
        most = self.c.masked_fill(~there, -torch.inf).amax(dim=-1, keepdim=True)
        least = self.c.masked_fill(~there, torch.inf).amin(dim=-1, keepdim=True)
        some = there.any(dim=-1, keepdim=True)
        self.some_seen = some.squeeze(-1)
        self.too_wide = (some & ~(most - least <= _WIDEST)).squeeze(-1)
        middle = torch.where(some & (most < torch.inf), least + (most - least) / 2, 0)
        self.weight = torch.where(there, (self.c - middle).exp(), 0)
        self.least_weight = torch.where(some, least - middle, 0).exp().squeeze(-1)

    def holds(self, x: Tensor) -> Tensor:
        """Whether numbers of this size, in a head, can be weighted; small ones would be lost."""
        most = x.abs().flatten(2).amax(dim=-1) if x.shape[-1] else torch.zeros_like(self.least_weight)
        return (most == 0) | (most * self.least_weight >= torch.finfo(x.dtype).tiny * _LIFTED)

    def pairs(self) -> Iterator[tuple[slice, slice]]:
        b, h, n, _ = self.k.shape
        size = max(_SMALLEST_TILE, int(math.sqrt(_SCORES_AT_ONCE / max(b * h, 1))))
        tiles = [slice(at, min(at + size, n)) for at in range(0, n, size)]
        return ((first, second) for i, first in enumerate(tiles) for second in tiles[i:])

    def gaussian(self, first: slice, second: slice) -> Tensor:
        g = self.scaled[..., first, :] @ self.k[..., second, :].mT
        # In this order close tokens lose nothing: both differences are small.
        return g.sub_(self.c[..., first, None]).sub_(self.c[..., None, second]).add_(math.log(_LIFTED)).exp_()


def tiles_forward(
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], *, seen: Bool[Tensor, "b n"] | None, scale: float
) -> Attended:
    """Symmetric attention, what its rows were divided by, and the heads where that was done the plain way."""
    weighted = _Weighted(k, seen, scale)
    values = v * weighted.weight.unsqueeze(-1)
    out, totals = torch.zeros_like(v), torch.zeros_like(weighted.c)
    for first, second in weighted.pairs():
        g = weighted.gaussian(first, second)
        out[..., first, :] += g @ values[..., second, :]
        totals[..., first] += (g @ weighted.weight[..., second, None]).squeeze(-1)
        if first != second:
            out[..., second, :] += g.mT @ values[..., first, :]
            totals[..., second] += (g.mT @ weighted.weight[..., first, None]).squeeze(-1)
    trusted = ((totals >= _LEAST_TOTAL) & (totals < torch.inf)).all(dim=-1) & out.isfinite().all(dim=-1).all(dim=-1)
    share = torch.where(weighted.some_seen.unsqueeze(-1), 1 / totals, 0)
    attended = beside_tokens(v).copy_(out * share.unsqueeze(-1))
    lost = weighted.some_seen & (weighted.too_wide | ~trusted | ~weighted.holds(v))
    if lost.any():
        attended[lost] = plain(k[lost], v[lost], seen_at(seen, lost), scale)
    return Attended(attended, totals, lost)


def tiles_backward(
    gradient: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    attended: Attended,
    *,
    seen: Bool[Tensor, "b n"] | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients for k and v."""
    weighted = _Weighted(k, seen, scale)
    # Without the lift, so that small gradients stay above zero.
    share = torch.where(weighted.some_seen.unsqueeze(-1), _LIFTED / attended.totals, 0).unsqueeze(-1)
    a, b = gradient * share, v * weighted.weight.unsqueeze(-1)
    a_dot_o, w = (a * attended.out).sum(dim=-1), weighted.weight
    to_k, to_v = torch.zeros_like(k), torch.zeros_like(v)
    left, right = torch.cat([a, b], dim=-1), torch.cat([b, a], dim=-1)
    for first, second in weighted.pairs():
        g = weighted.gaussian(first, second)
        t = left[..., first, :] @ right[..., second, :].mT
        t -= a_dot_o[..., first, None] * w[..., None, second] + w[..., first, None] * a_dot_o[..., None, second]
        t *= g
        to_v[..., first, :] += g @ a[..., second, :]
        to_k[..., first, :] += t @ k[..., second, :]
        if first != second:
            to_v[..., second, :] += g.mT @ a[..., first, :]
            to_k[..., second, :] += t.mT @ k[..., first, :]
    to_k, to_v = (
        beside_tokens(k).copy_(to_k * (scale / _LIFTED)),
        beside_tokens(v).copy_(to_v * w.unsqueeze(-1) / _LIFTED),
    )
    finite = to_k.isfinite().flatten(2).all(dim=-1) & to_v.isfinite().flatten(2).all(dim=-1)
    lost = attended.plain | ~finite | ~weighted.holds(gradient / k.shape[-2])
    if lost.any():
        operands = (x[lost] for x in (gradient, k, v, attended.out))
        to_k[lost], to_v[lost] = plain_backward(*operands, seen=seen_at(seen, lost), scale=scale)
    return to_k, to_v
