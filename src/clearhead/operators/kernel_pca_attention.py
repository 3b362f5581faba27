r"""Attention whose values hold the principal axes of its keys: kernel PCA of queries (Teo and Nguyen 2024, theorem 1).

The theorem is about one set of keys. Under a mask every query has its own: g, the mean and the axes are those of the
keys that it sees, and row i of causal attention is a projection only with the values V^(i) of its own prefix. Causal
attention with one V for all rows, which is what a network computes, is not kernel PCA in any row but the last.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.kernel_pca import PART, AxisNorm, kernel_pca
from clearhead.operators.kernel_pca_solvers import Axes
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, check_attention_operands

__all__ = ["kernel_pca_attention"]


def kernel_pca_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    *,
    axes: Axes,
    scale: float | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    axis_norm: AxisNorm = "unit",
    center_queries: bool = False,
    learn_axes: bool = False,
) -> Float[Tensor, "*b n e"]:
    r"""Project every query on the first principal axes of the keys that it sees, in feature space.

    .. math:: o_{id} = \langle \varphi(q_i), u_d \rangle = \sum_j w_{ij} v_{dj}, \qquad
        w_{ij} = \operatorname{softmax}_j(s\, q_i \cdot k_j)

    with the axes and values of `kernel_pca`, of the keys that `mask`, which broadcasts to (..., n, m), shows to query
    i. Rows that see the same keys share one decomposition, so a padding mask costs one for each input, and a causal
    mask one for each row. Every set of keys has its own axes, each with the sign that `kernel_pca` gives it. A query
    that sees nothing gets zeros, and so does an axis beyond the rank.

    axes: how many, the width of the output; or by rank or explained variance as in `kernel_pca`, where all queries of
        an input see the same keys
    scale, axis_norm: as in `kernel_pca`
    center_queries: whether the queries' features are centred as the keys' are, as textbooks have it; the source does
        not, and the difference is one number for each axis and set of keys
    learn_axes: whether gradients flow through the axes as well; if not, V is a constant, the gradient for q is exact,
        and that for k is through the weights alone. The gradient of an axis grows as 1 / gap to its neighbours

    The axes are computed in double precision whatever the dtype; the weights in single precision or better.
    """
    scale = check_axes(q, k, axes, mask, scale)
    settings = _Settings(axes, scale, axis_norm, center_queries, learn_axes)
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1:
        keys = None if mask is None else mask.expand(*mask.shape[:-1], k.shape[-2])
        keys = keys.squeeze(-2) if keys is not None and keys.ndim > 1 else keys
        return _project(q, k, keys, settings)
    if not isinstance(axes, int):
        raise InputError(f"expected a number of axes under a mask that may show queries different keys; got {axes}")
    return _by_key_set(q, k, mask.expand(*q.shape[:-1], k.shape[-2]), settings, axes)


@dataclass(frozen=True, slots=True)
class _Settings:
    axes: Axes
    scale: float
    axis_norm: AxisNorm
    center_queries: bool
    learn_axes: bool


def check_axes(q: Tensor, k: Tensor, axes: Axes, mask: Tensor | None, scale: float | None) -> float:
    """The scale, if the operands belong together; the values, which only have a width, stand in for themselves."""
    check_attention_operands(q, k, k, mask=mask)
    if isinstance(axes, int) and axes < 1:
        raise InputError(f"expected one axis or more; got {axes}")
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _project(q: Tensor, k: Tensor, keys: Tensor | None, settings: _Settings) -> Tensor:
    """Projections where all queries see the same keys, those that `keys` (..., m) shows."""
    pca = kernel_pca(
        k,
        axes=settings.axes,
        scale=settings.scale,
        mask=keys,
        axis_norm=settings.axis_norm,
        learn_axes=settings.learn_axes,
    )
    mask = None
    if keys is not None:
        mask = keys.unsqueeze(-2)
        k = k.masked_fill(~keys.unsqueeze(-1), 0)
    # Projections are small beside the values that they are sums of, so single precision would not do.
    out = softmax_attention(q.double(), k.double(), pca.values, mask=mask, scale=settings.scale)
    if settings.center_queries:
        out = out - pca.key_mean.unsqueeze(-2)
    return out.to(q.dtype)


def _by_key_set(q: Tensor, k: Tensor, mask: Tensor, settings: _Settings, axes: int) -> Tensor:
    """Projections with one decomposition for each input and set of keys that some query of it sees."""
    (n, d), m = q.shape[-2:], k.shape[-2]
    q, k = q.reshape(-1, n, d), k.reshape(-1, m, d)
    inputs = torch.arange(q.shape[0], device=q.device).repeat_interleave(n)
    of_input = torch.cat([inputs[:, None], mask.reshape(-1, m).long()], dim=1)
    sets, of_row = torch.unique(of_input, dim=0, return_inverse=True)
    owner, seen = sets[:, 0], sets[:, 1:].bool()
    count, queries = seen.sum(dim=-1), of_row.bincount(minlength=len(sets))
    by_set = of_row.argsort(stable=True)
    place = torch.arange(len(by_set), device=q.device) - (queries.cumsum(0) - queries)[of_row[by_set]]
    rows, found = [], []
    # Sets of like size go together, and each is shortened to the keys that are seen.
    for chosen in torch.split(count.argsort(stable=True), max(1, PART // max(m * m, 1))):
        width, most = int(count[chosen].max()), int(queries[chosen].max())
        number = torch.full_like(count, -1).scatter(0, chosen, torch.arange(len(chosen), device=q.device))
        here = number[of_row[by_set]] >= 0
        row, at = by_set[here], (number[of_row[by_set]][here], place[here])
        own_q = q.new_zeros(len(chosen), most, d).index_put(at, q.reshape(-1, d)[row])
        visible_first = seen[chosen].long().argsort(dim=-1, descending=True, stable=True)[:, :width]
        own_k = k[owner[chosen]].gather(-2, visible_first.unsqueeze(-1).expand(-1, -1, d))
        there = torch.arange(width, device=q.device) < count[chosen].unsqueeze(-1)
        rows.append(row)
        found.append(_project(own_q, own_k, there, settings)[at])
    if not found:
        return q.new_zeros(*mask.shape[:-1], axes)
    # A query without keys sits in a set without keys: its values are zero, and centring takes zero away.
    return torch.cat(found)[torch.cat(rows).argsort()].reshape(*mask.shape[:-1], axes)
