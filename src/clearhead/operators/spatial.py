r"""Attention over images, video and other fields: every position is a token, its channels are the token's features.

Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, the part on higher-order data: a tensor is
unfolded along its channel mode, attended to as a set of tokens, and folded back to the spatial size of Q. The slides'
unfolding X_(3) (Kolda and Bader 2009, section 2.4) has the channel fibres as columns; `unfold` has them as rows, in the
order in which PyTorch stores the positions. Any order gives the same attention, since keys and values share it.

This is not torch.nn.Unfold, which cuts out patches: here a patch is one position.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, ShapeError, format_shapes


def spatial_size(x: Float[Tensor, "b ..."], channel_axis: int = 1) -> tuple[int, ...]:
    """Return the sizes of all axes but batch and channels: (height, width) of an image, (time, ...) of a video."""
    axis = _front_axis(x.ndim, channel_axis, f"x {tuple(x.shape)}")
    return tuple(x.shape[1:axis] + x.shape[axis + 1 :])


def unfold(x: Float[Tensor, "b ..."], channel_axis: int = 1) -> Float[Tensor, "b n c"]:
    """Return the fibres of x along its channels as rows: x[b, :, y, x] becomes token y * width + x.

    x: (b, c, *spatial) or, with `channel_axis=-1`, (b, *spatial, c), with one spatial axis or more
    """
    axis = _front_axis(x.ndim, channel_axis, f"x {tuple(x.shape)}")
    positions = math.prod(spatial_size(x, channel_axis))
    return x.movedim(axis, -1).reshape(x.shape[0], positions, x.shape[axis])


def fold(tokens: Float[Tensor, "b n c"], spatial: Sequence[int], channel_axis: int = 1) -> Float[Tensor, "b ..."]:
    """Return tokens (b, positions, c) as a grid of the given spatial size: the inverse of `unfold`."""
    if tokens.ndim != 3 or not spatial or tokens.shape[1] != math.prod(spatial):
        raise ShapeError(
            f"expected tokens (b, positions, c), one for each position of the grid {tuple(spatial)}; "
            f"got tokens {tuple(tokens.shape)}"
        )
    axis = _front_axis(len(spatial) + 2, channel_axis, f"spatial {tuple(spatial)}, tokens {tuple(tokens.shape)}")
    return tokens.reshape(tokens.shape[0], *spatial, tokens.shape[2]).movedim(-1, axis)


def spatial_attention(
    q: Float[Tensor, "b ..."],
    k: Float[Tensor, "b ..."],
    v: Float[Tensor, "b ..."],
    *,
    channel_axis: int = 1,
    operator: Callable[..., Tensor] = softmax_attention,
    **options: Any,
) -> Float[Tensor, "b ..."]:
    r"""Return attention from every position of q to all positions of k and v.

    .. math:: O = \operatorname{fold}_{\text{spatial size of } Q}\,
        A(\operatorname{unfold} Q, \operatorname{unfold} K, \operatorname{unfold} V)

    q: (b, d, *spatial), or (b, *spatial, d) with `channel_axis=-1`
    k, v: (b, d, *other) and (b, e, *other); their spatial size may differ from that of q, also in the number of axes
    operator: A, a function of q (b, n, d), k (b, m, d), v (b, m, e)
    options: keyword arguments of the operator, such as mask and scale; a mask or a bias broadcasts to (b, n, m), with
        positions in the order of `unfold`

    The output, (b, e, *spatial), has the spatial size of q and the channels of v.
    """
    operands = {"q": q, "k": k, "v": v}
    got = format_shapes(**operands)
    for x in operands.values():
        _front_axis(x.ndim, channel_axis, got)
    if spatial_size(k, channel_axis) != spatial_size(v, channel_axis):
        raise ShapeError(f"expected k and v of the same spatial size, with channels on axis {channel_axis}; got {got}")
    tokens = (unfold(x, channel_axis) for x in operands.values())
    return fold(operator(*tokens, **options), spatial_size(q, channel_axis), channel_axis)


def slow_spatial_attention(
    q: Float[Tensor, "b ..."],
    k: Float[Tensor, "b ..."],
    v: Float[Tensor, "b ..."],
    *,
    channel_axis: int = 1,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b ..."]:
    """Compute `spatial_attention` with softmax, one position at a time, without unfolding or folding."""
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


def _front_axis(ndim: int, channel_axis: int, got: str) -> int:
    """Return the channel axis counted from the front. Raise `ShapeError` unless it exists."""
    axis = channel_axis + ndim if channel_axis < 0 else channel_axis
    if ndim < 3 or not 0 < axis < ndim:
        raise ShapeError(
            "expected a batch axis first, a channel axis, and one spatial axis or more; "
            f"got channel_axis {channel_axis}, {got}"
        )
    return axis
