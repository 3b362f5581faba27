"""Reference definitions of softmax attention and its relatives: one query, or one pair of tokens, at a time."""

import math
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.numerics.eigenpairs import same_sign
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import features_from_log_kernel
from clearhead.operators.clamped_keys import RELEASED_BOUND, KeyBound
from clearhead.operators.general import Map, Similarity, apply_maps, gaussian
from clearhead.operators.kernel_pca import AxisNorm
from clearhead.operators.kernel_pca_attention import check_axes
from clearhead.operators.scaled import AlphaSymmetric, Scaling, SMatrix, check_scaling, expand_alpha, matrix_for_keys
from clearhead.operators.softmax import check_sinks
from clearhead.operators.spatial import spatial_size
from clearhead.shapes import Bool, Float, check_attention_operands

__all__ = [
    "clamped_key_attention",
    "general_attention",
    "kernel_pca_attention",
    "scaled_attention",
    "softmax_attention",
    "spatial_attention",
    "symmetric_attention",
]


def softmax_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.softmax_attention` one query at a time."""
    check_attention_operands(q, k, v, mask=mask, bias=bias)
    check_sinks(q, k, v, sinks)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    *batch, n, m = *q.shape[:-1], k.shape[-2]
    visible = torch.ones(n, m, dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*batch, n, m)
    added = torch.zeros(n, m, dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
    added = added.expand(*batch, n, m)
    rows = []
    for i in range(n):
        score = scale * (q[..., i, None, :] * k).sum(dim=-1)
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        score = score + added[..., i, :]
        if sinks is not None:
            score = torch.cat([score, sinks.to(score.dtype).expand(*batch)[..., None]], dim=-1)
        row_mask = visible[..., i, :]
        if sinks is not None:
            row_mask = torch.cat([row_mask, torch.ones_like(row_mask[..., :1])], dim=-1)
        score = score.masked_fill(~row_mask, -torch.inf)
        top = score.detach().amax(dim=-1, keepdim=True) if score.shape[-1] else torch.zeros_like(score.sum(-1, True))
        weight = (score - torch.where(row_mask.any(dim=-1, keepdim=True), top, 0)).exp()
        share = weight[..., :m] / weight.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        rows.append((share[..., None] * v).sum(dim=-2))
    return torch.stack(rows, dim=-2) if rows else q.new_zeros(*batch, 0, v.shape[-1])


def general_attention(
    q: Float[Tensor, "*b n p"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m c"],
    *,
    similarity: Similarity | None = None,
    value: Map | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.general_attention` by equation (1), one query and one key at a time."""
    similarity = gaussian() if similarity is None else similarity
    q, k, v = apply_maps(q, k, v, similarity, value, mask, bias)
    *batch, n, m = *q.shape[:-1], k.shape[-2]
    visible = torch.ones(1, 1, dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*batch, n, m)
    added = None if bias is None else bias.expand(*batch, n, m)
    rows = []
    for j in range(n):
        total, normaliser = torch.zeros_like(v[..., :1, :].sum(dim=-2)), torch.zeros_like(q[..., :1].sum(dim=-2))
        for i in range(m):
            weight = similarity.pair(q[..., j, :], k[..., i, :])
            if added is not None:
                weight = weight * added[..., j, i].exp() if similarity.exponential else weight + added[..., j, i]
            pair_visible = visible[..., j, i].unsqueeze(-1)
            weight = torch.where(pair_visible, weight.unsqueeze(-1), 0)
            total = total + weight * v[..., i, :]
            normaliser = normaliser + (weight if similarity.exponential else pair_visible.to(q.dtype))
        rows.append(torch.where(normaliser != 0, total / torch.where(normaliser != 0, normaliser, 1), 0).to(v.dtype))
    return torch.stack(rows, dim=-2) if rows else v.new_zeros(*batch, 0, v.shape[-1])


def symmetric_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.symmetric_attention` as softmax attention whose queries are the keys."""
    return softmax_attention(k, k, v, mask=mask, scale=scale)


def clamped_key_attention(
    q: Float[Tensor, "*b n d"] | None,
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    bound: KeyBound = RELEASED_BOUND,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.clamped_key_attention` by clamping each entry, then softmax attention."""
    t = bound.compute(k, mask).to(k.dtype)
    clamped = torch.where(k > t, t, torch.where(k < -t, -t, k))
    return softmax_attention(clamped if q is None else q, clamped, v, mask=mask, scale=scale)


def scaled_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    s: Scaling,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.scaled_attention` with S as a matrix for every head, one token's values at a time."""
    key_mask = check_scaling(q, k, v, s, mask)
    *batch, m, _ = v.shape
    if isinstance(s, SMatrix):
        matrix = matrix_for_keys(s, q, k, v).expand(*batch, m, m)
        matrix = matrix if key_mask is None else torch.where(key_mask, matrix, 0)
    else:
        queries = k if isinstance(s, AlphaSymmetric) else q
        identity = torch.eye(m, dtype=v.dtype, device=v.device).expand(*batch, m, m)
        matrix = expand_alpha(s.alpha, v) * softmax_attention(queries, k, identity, mask=key_mask, scale=scale)
    rows = [v[..., j, :] - (matrix[..., j, :, None] * v).sum(dim=-2) for j in range(m)]
    values = torch.stack(rows, dim=-2).to(v.dtype) if rows else v
    return softmax_attention(q, k, values, mask=mask, scale=scale)


def spatial_attention(
    q: Float[Tensor, "b ..."],
    k: Float[Tensor, "b ..."],
    v: Float[Tensor, "b ..."],
    *,
    channel_axis: int = 1,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b ..."]:
    """Compute `operators.spatial_attention` with softmax, one position at a time, without unfolding or folding."""
    scale = 1 / math.sqrt(q.shape[channel_axis]) if scale is None else scale
    queries, keys = (_positions(spatial_size(x, channel_axis)) for x in (q, k))
    visible = torch.ones(1, 1, 1, dtype=torch.bool) if mask is None else mask
    visible = visible.to(q.device).expand(q.shape[0], len(queries), len(keys))
    q, k, v = (x.movedim(channel_axis, -1) for x in (q, k, v))
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=v.dtype, device=v.device)
    for j, query in enumerate(queries):
        total = torch.zeros_like(out[query])
        normaliser = torch.zeros_like(total[:, :1])
        for i, key in enumerate(keys):
            weight = (scale * (q[query] * k[key]).sum(dim=-1, keepdim=True)).exp()
            weight = torch.where(visible[:, j, i, None], weight, 0)
            total, normaliser = total + weight * v[key], normaliser + weight
        out[query] = torch.where(normaliser > 0, total / torch.where(normaliser > 0, normaliser, 1), 0)
    return out.movedim(-1, channel_axis)


def _positions(size: tuple[int, ...]) -> list[tuple[slice | int, ...]]:
    """Return the index of each position of a grid, with all of the batch, the last axis running fastest."""
    return [(slice(None), *position) for position in product(*map(range, size))]


def kernel_pca_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    *,
    axes: int,
    scale: float | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    axis_norm: AxisNorm = "unit",
    center_queries: bool = False,
) -> Float[Tensor, "*b n e"]:
    """Compute `operators.kernel_pca_attention` one query at a time, without Gram matrix, eigenvectors or values.

    The query and its visible keys get coordinates in feature space, from the kernel matrix of all of them. The axes are
    singular vectors of N - 1 orthonormal contrasts of the keys' coordinates, which have the covariance of the centred
    coordinates, and projections are inner products of coordinates. Gradients flow through everything, also the axes.
    """
    scale = check_axes(q, k, axes, mask, scale)
    *leading, n, m = *q.shape[:-1], k.shape[-2]
    visible = torch.ones(n, m, dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*leading, n, m).reshape(-1, n, m)
    wide_q, wide_k = q.double().reshape(-1, n, q.shape[-1]), k.double().reshape(-1, m, k.shape[-1])
    rows = [
        _project_query(wide_q[b, i], wide_k[b, visible[b, i]], axes, scale, axis_norm, center_queries)
        for b in range(len(wide_q))
        for i in range(n)
    ]
    return torch.stack(rows).to(q.dtype).reshape(*leading, n, axes) if rows else q.new_zeros(*leading, n, axes)


def _project_query(q: Tensor, k: Tensor, axes: int, scale: float, axis_norm: AxisNorm, center_queries: bool) -> Tensor:
    if len(k) == 0:
        return q.new_zeros(axes) + 0 * q.sum()
    points = torch.cat([k, q.unsqueeze(0)])
    log_kernel = scale * points @ points.mT
    features = features_from_log_kernel(log_kernel)
    log_size = features.log_norm - torch.logsumexp(log_kernel[:, :-1], dim=-1)
    largest = log_size[:-1].max().detach()
    phi = features.direction * (log_size - largest).exp().unsqueeze(-1)
    phi_k, phi_q = phi[:-1], phi[-1]
    centred = phi_k - phi_k.mean(dim=0)
    ones_first = torch.cat([phi_k.new_ones(len(k), 1), torch.eye(len(k)).to(phi_k)], dim=1)[:, :-1]
    contrasts = torch.linalg.qr(ones_first).Q[:, 1:].mT
    _, lengths, right = torch.linalg.svd(contrasts @ phi_k, full_matrices=False)
    least = 4 * machine_epsilon(torch.float64) * (len(k) + log_kernel.detach().abs().max()) * phi_k.square().sum()
    rank = min(int((lengths.square() > least).sum()), axes)
    axis, length = right[:rank].mT, lengths[:rank]
    axis = axis * same_sign(centred @ axis)
    point = phi_q - phi_k.mean(dim=0) if center_queries else phi_q
    projection = (point @ axis) * largest.exp()
    if axis_norm == "eigenvector":
        projection = projection * length * largest.exp()
    return pad(projection, (0, axes - rank))
