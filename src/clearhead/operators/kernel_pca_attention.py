r"""Attention whose values encode the principal axes of its keys: kernel PCA of queries (Teo and Nguyen 2024).

The theorem is about one set of keys. Under a mask every query has its own set: g, the mean and the axes are those of
its visible keys, and row i of causal attention is a projection only with the values V^(i) of its own prefix. Causal
attention with one V for all rows, as a network computes it, is kernel PCA in the last row only.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.errors import InputError
from clearhead.numerics.eigenpairs import same_sign
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.spectrum import features_from_log_kernel
from clearhead.operators.kernel_pca import CHUNK, AxisNorm, KernelPCA, kernel_pca
from clearhead.operators.kernel_pca_solvers import Axes
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, check_attention_operands


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
    r"""Project every query onto the first principal axes of its visible keys, in feature space.

    .. math:: o_{id} = \langle \varphi(q_i), u_d \rangle = \sum_j w_{ij} v_{dj}, \qquad
        w_{ij} = \operatorname{softmax}_j(s\, q_i \cdot k_j)

    with the axes and values of `kernel_pca` of the keys visible to query i: values are computed, not passed. Rows with
    the same visible keys share one decomposition, so a padding mask costs one for each input, and a causal mask one for
    each row. Every set of keys has its own axes, with the signs of `kernel_pca`. A query without visible keys gets
    zeros, and so does an axis beyond the rank.

    mask: True where a query may attend, broadcasts to (..., n, m)
    axes: the number of axes, which is the width of the output; or `ByRank()` or `ByExplained(share)` if all queries of
        an input see the same keys
    scale, axis_norm: as in `kernel_pca`
    center_queries: True to centre the queries' features as the keys' are, as in textbooks; the source does not, and the
        difference is one number for each axis and set of keys
    learn_axes: True if gradients also flow through the axes; if False, V is a constant, the gradient for q is exact,
        and that for k is through the weights alone. The gradient of an axis grows as 1 / gap to its neighbours

    The axes are computed in double precision whatever the dtype; the weights in single precision or better.
    """
    scale = check_axes(q, k, axes, mask, scale)
    pca = partial(kernel_pca, axes=axes, scale=scale, axis_norm=axis_norm, learn_axes=learn_axes)
    project = partial(_project, pca=pca, scale=scale, center_queries=center_queries)
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1:
        key_mask = None if mask is None else mask.expand(*mask.shape[:-1], k.shape[-2])
        key_mask = key_mask.squeeze(-2) if key_mask is not None and key_mask.ndim > 1 else key_mask
        return project(q, k, key_mask)
    if not isinstance(axes, int):
        raise InputError(f"expected a number of axes, because queries may see different keys; got {axes}")
    mask = mask.expand(*q.shape[:-1], k.shape[-2])
    return run_within_memory(
        partial(_by_key_set, q, k, mask, project, axes),
        task="kernel PCA of keys that differ between queries",
        remedy="pass fewer tokens at once, or a mask (..., 1, m) that is the same for all queries",
        device=q.device,
        needed=bytes_of_matrices(mask.shape, torch.long),  # masks with numbers, and their sets
    )


def slow_kernel_pca_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    *,
    axes: int,
    scale: float | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    axis_norm: AxisNorm = "unit",
    center_queries: bool = False,
) -> Float[Tensor, "*b n e"]:
    """Compute `kernel_pca_attention` one query at a time, without Gram matrix, eigenvectors or values.

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


def check_axes(q: Tensor, k: Tensor, axes: Axes, mask: Tensor | None, scale: float | None) -> float:
    """Return the scale. Raise `ShapeError` or ValueError unless the operands fit."""
    check_attention_operands(q, k, k, mask=mask)
    if isinstance(axes, int) and axes < 1:
        raise InputError(f"expected one axis or more; got {axes}")
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _project(
    q: Tensor, k: Tensor, key_mask: Tensor | None, *, pca: Callable[..., KernelPCA], scale: float, center_queries: bool
) -> Tensor:
    """Return projections where all queries see the same keys, those where `key_mask` (..., m) is True."""
    axes, mask = pca(k, mask=key_mask), None
    if key_mask is not None:
        mask = key_mask.unsqueeze(-2)
        k = k.masked_fill(~key_mask.unsqueeze(-1), 0)
    # Projections are small compared with the values that they are sums of: single precision is not enough.
    out = softmax_attention(q.double(), k.double(), axes.values, mask=mask, scale=scale)
    if center_queries:
        out = out - axes.key_mean.unsqueeze(-2)
    return out.to(q.dtype)


def _by_key_set(q: Tensor, k: Tensor, mask: Tensor, project: Callable[..., Tensor], axes: int) -> Tensor:
    """Return projections with one decomposition for each input and each set of keys visible to some of its queries."""
    (n, d), m = q.shape[-2:], k.shape[-2]
    q, k = q.reshape(-1, n, d), k.reshape(-1, m, d)
    inputs = torch.arange(q.shape[0], device=q.device).repeat_interleave(n)
    labelled_masks = torch.cat([inputs[:, None], mask.reshape(-1, m).long()], dim=1)
    sets, set_of_row = torch.unique(labelled_masks, dim=0, return_inverse=True)
    input_of_set, visible = sets[:, 0], sets[:, 1:].bool()
    count, queries = visible.sum(dim=-1), set_of_row.bincount(minlength=len(sets))
    by_set = set_of_row.argsort(stable=True)
    position = torch.arange(len(by_set), device=q.device) - (queries.cumsum(0) - queries)[set_of_row[by_set]]
    rows, outputs = [], []
    # Sets of similar size are batched, and each is shortened to its visible keys.
    for batch in torch.split(count.argsort(stable=True), max(1, CHUNK // max(m * m, 1))):
        width, most = int(count[batch].max()), int(queries[batch].max())
        number = torch.full_like(count, -1).scatter(0, batch, torch.arange(len(batch), device=q.device))
        in_batch = number[set_of_row[by_set]] >= 0
        row, index = by_set[in_batch], (number[set_of_row[by_set]][in_batch], position[in_batch])
        batch_q = q.new_zeros(len(batch), most, d).index_put(index, q.reshape(-1, d)[row])
        visible_first = visible[batch].long().argsort(dim=-1, descending=True, stable=True)[:, :width]
        batch_k = k[input_of_set[batch]].gather(-2, visible_first.unsqueeze(-1).expand(-1, -1, d))
        key_mask = torch.arange(width, device=q.device) < count[batch].unsqueeze(-1)
        rows.append(row)
        outputs.append(project(batch_q, batch_k, key_mask)[index])
    if not outputs:
        return q.new_zeros(*mask.shape[:-1], axes)
    # A query without keys is in a set without keys: its values are zero, and centring subtracts zero.
    return torch.cat(outputs)[torch.cat(rows).argsort()].reshape(*mask.shape[:-1], axes)
