r"""Scaled attention (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762, remark 3 and section 3).

Their values are V = G A - G 1_N A = (I - S) V^ with V^ = G A and S = G 1_N / G. A network that learns V^ as X W_V can
learn S as well: H = softmax(Q K^T s) (I - S) V^. Here v is V^, `scale` is 1/sqrt(D), and the three kinds of S are
theirs. Their readme calls "alpha x Asym" what their code computes as alpha softmax(K K^T s), which is `AlphaSymmetric`
here; `AlphaAsymmetric` is alpha softmax(Q K^T s).

Difference from the source: it has no masks. Here the mask also applies to S, see `scaled_attention`.

The source ties its learned S to one length. S = G 1_N / G has entries g_l / (N g_j): with more tokens of the same kind
the entries shrink as 1 / N, and rows keep their sums, mean(g) / g_j. `resize_matrix` does the same.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from clearhead.errors import InputError
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.operators.softmax import slow_softmax_attention, softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float, ShapeError, broadcasts, check_attention_operands, format_shapes

Layout = Literal["line", "grid"]
"""The arrangement of tokens: in sequence, or on a square grid, row by row."""


def resize_matrix(
    matrix: Float[Tensor, "... n n"], num_tokens: int, *, layout: Layout = "line", num_prefix_tokens: int = 0
) -> Float[Tensor, "... m m"]:
    r"""Return the matrix for m = num_tokens tokens, interpolated linearly over both token axes.

    .. math:: S' = \tfrac{n}{m}\, W S W^\top

    with W (m, n) the linear interpolation of tokens at the centres of equal cells, antialiased if m < n, so that every
    token contributes. The mean over n tokens, entries 1 / n, becomes the mean over m. Rows keep their sums,
    interpolated between rows: exactly if m is a multiple of n, approximately if not.

    layout: "line", or "grid" for a square of patches, interpolated along both sides
    num_prefix_tokens: the number of leading tokens that are not interpolated, such as a class token; they keep their
        entries and do not count in n and m above
    """
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1]:
        raise ShapeError(f"expected a matrix (..., n, n); got {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise InputError(f"expected a matrix of a floating dtype; got {matrix.dtype}")
    before = matrix.shape[-1]
    if layout not in ("line", "grid"):
        raise InputError(f'expected a layout "line" or "grid"; got {layout!r}')
    if not 0 <= num_prefix_tokens < min(before, num_tokens):
        raise InputError(
            f"expected fewer prefix tokens than tokens, {before} before and {num_tokens} after; got {num_prefix_tokens}"
        )
    if num_tokens == before:
        return matrix
    wide = torch.promote_types(matrix.dtype, torch.float32)
    sizes = before - num_prefix_tokens, num_tokens - num_prefix_tokens
    if layout == "grid":
        along = _interpolation(_side(sizes[0]), _side(sizes[1]), dtype=wide, device=matrix.device)
        weights = torch.kron(along, along)
    else:
        weights = _interpolation(*sizes, dtype=wide, device=matrix.device)
    share = sizes[0] / sizes[1]
    resized = _with_prefix(num_prefix_tokens, weights) @ matrix.to(wide)
    return (resized @ _with_prefix(num_prefix_tokens, share * weights).mT).to(matrix.dtype)


def _with_prefix(count: int, weights: Tensor) -> Tensor:
    """Return the block-diagonal matrix of the identity of `count` tokens and the weights."""
    prefix = torch.eye(count, weights.shape[1] + count, dtype=weights.dtype, device=weights.device)
    return torch.cat([prefix, pad(weights, (count, 0))])


def _side(tokens: int) -> int:
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise InputError(f"expected a square number of tokens, without prefix tokens, for a grid; got {tokens}")
    return side


def _interpolation(before: int, after: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (after, before): the weights of the tokens before, for each token after."""
    identity = torch.eye(before, dtype=dtype, device=device)[None, None]
    columns: Tensor = interpolate(identity, size=(before, after), mode="bilinear", antialias=True)
    return columns[0, 0].mT


@dataclass(frozen=True, slots=True, eq=False)
class SMatrix:
    """S as a matrix, (m, m) for all heads or (h, m, m) with one for each.

    resize: None to raise an error for another number of keys; "line" or "grid" to interpolate S by `resize_matrix`
    num_prefix_tokens: the number of leading keys that are not interpolated, such as a class token
    """

    matrix: Float[Tensor, "*h m m"]
    resize: Layout | None = None
    num_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AlphaSymmetric:
    """S = alpha softmax(K K^T s), alpha one number or one for each head."""

    alpha: Float[Tensor, "..."] | float


@dataclass(frozen=True, slots=True, eq=False)
class AlphaAsymmetric:
    """S = alpha softmax(Q K^T s), alpha one number or one for each head."""

    alpha: Float[Tensor, "..."] | float


Scaling = SMatrix | AlphaSymmetric | AlphaAsymmetric


def scaled_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    s: Scaling,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Return softmax attention over values from which a combination of other tokens' values is subtracted.

    .. math:: H = \operatorname{softmax}(\text{scale}\; q k^\top)\,(I - S)\, v

    s: S, as an `SMatrix`, `AlphaSymmetric` or `AlphaAsymmetric`; with S = 0 it is softmax attention
    mask: True where a query may attend, broadcasts to (..., n, m)
    scale: 1/sqrt(d) if None

    The mask of token j applies to row j of S: attention under the same mask, or a matrix without the hidden entries. So
    tokens that are hidden from all have no influence, and under a causal mask no later token has. A mask that differs
    between queries therefore requires n = m, and `AlphaAsymmetric` always does. A mask (..., 1, m) only hides keys.
    Rows of S do not sum to one, and alpha may be any number.

    Both products run on the kernels of `softmax_attention` and `symmetric_attention`, which store no n x m matrix. A
    matrix S takes one product for the whole batch, unless a mask differs both between inputs and between queries.
    """
    return softmax_attention(q, k, scaled_values(q, k, v, s=s, mask=mask, scale=scale), mask=mask, scale=scale)


def slow_scaled_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    s: Scaling,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `scaled_attention` with S as a matrix for every head, one token's values at a time."""
    key_mask = check_scaling(q, k, v, s, mask)
    *batch, m, _ = v.shape
    if isinstance(s, SMatrix):
        matrix = matrix_for_keys(s, q, k, v).expand(*batch, m, m)
        matrix = matrix if key_mask is None else torch.where(key_mask, matrix, 0)
    else:
        queries = k if isinstance(s, AlphaSymmetric) else q
        identity = torch.eye(m, dtype=v.dtype, device=v.device).expand(*batch, m, m)
        matrix = expand_alpha(s.alpha, v) * slow_softmax_attention(queries, k, identity, mask=key_mask, scale=scale)
    rows = [v[..., j, :] - (matrix[..., j, :, None] * v).sum(dim=-2) for j in range(m)]
    values = torch.stack(rows, dim=-2).to(v.dtype) if rows else v
    return slow_softmax_attention(q, k, values, mask=mask, scale=scale)


def scaled_values(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    s: Scaling,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b m e"]:
    """Return (I - S) v, the values that `scaled_attention` averages."""
    key_mask = check_scaling(q, k, v, s, mask)
    if isinstance(s, SMatrix):
        subtracted = _product(matrix_for_keys(s, q, k, v), v, key_mask)
    elif isinstance(s, AlphaSymmetric):
        subtracted = expand_alpha(s.alpha, v) * symmetric_attention(k, v, mask=key_mask, scale=scale)
    else:
        subtracted = expand_alpha(s.alpha, v) * softmax_attention(q, k, v, mask=key_mask, scale=scale)
    return (v - subtracted).to(v.dtype)


def check_scaling(q: Tensor, k: Tensor, v: Tensor, s: Scaling, mask: Tensor | None) -> Tensor | None:
    """Return the mask of S, (..., m, m). Raise `ShapeError` or ValueError unless the operands fit."""
    check_attention_operands(q, k, v, mask=mask)
    if not isinstance(s, SMatrix | AlphaSymmetric | AlphaAsymmetric):
        raise InputError(f"expected s as SMatrix, AlphaSymmetric or AlphaAsymmetric; got {type(s).__name__}")
    if q.shape[-2] == k.shape[-2]:
        return mask
    if isinstance(s, AlphaAsymmetric):
        raise ShapeError(
            "expected a query for every key, because S is alpha times the attention matrix; "
            f"got {format_shapes(q=q, k=k, v=v, mask=mask)}"
        )
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        raise ShapeError(
            "expected n = m, or a mask (..., 1, m) that is the same for all queries, because the mask also applies to "
            f"S, which has a row for every key; got {format_shapes(q=q, k=k, v=v, mask=mask)}"
        )
    return mask


def expand_alpha(alpha: Tensor | float, v: Tensor) -> Tensor | float:
    """Return alpha as (..., 1, 1) in single precision or better. Raise unless it fits the heads of v."""
    if not isinstance(alpha, Tensor):
        return alpha
    if not alpha.is_floating_point() or alpha.device != v.device:
        raise InputError(f"expected a floating alpha on {v.device}, like v; got {alpha.dtype} on {alpha.device}")
    if alpha.numel() == 1:
        alpha = alpha.reshape(())
    if not broadcasts(tuple(alpha.shape), tuple(v.shape[:-2])):
        raise ShapeError(
            f"expected one alpha, or one for each head, {tuple(v.shape[:-2])[-1:]}; "
            f"got alpha {tuple(alpha.shape)}, v {tuple(v.shape)}"
        )
    return alpha.to(torch.promote_types(v.dtype, torch.float32))[..., None, None]


def matrix_for_keys(s: SMatrix, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return S for the number of keys, in the dtype of the values. Raise unless it fits."""
    matrix, m = s.matrix, k.shape[-2]
    if not matrix.is_floating_point() or matrix.device != v.device:
        raise InputError(f"expected a floating matrix on {v.device}, like v; got {matrix.dtype} on {matrix.device}")
    square = 2 <= matrix.ndim <= min(v.ndim, 3) and matrix.shape[-1] == matrix.shape[-2]
    if not square or (matrix.ndim == 3 and matrix.shape[0] not in (1, v.shape[-3])):
        got = format_shapes(S=matrix, q=q, k=k, v=v)
        raise ShapeError(f"expected S (m, m), or (h, m, m) for heads; got {got}")
    if matrix.shape[-1] != m and s.resize is None:
        raise ShapeError(
            f"S is for {matrix.shape[-1]} tokens and there are {m}: pass {matrix.shape[-1]} tokens, or resize it "
            f'(resize="line" or "grid"); got {format_shapes(S=matrix, q=q, k=k, v=v)}'
        )
    if s.resize is not None:
        matrix = resize_matrix(matrix, m, layout=s.resize, num_prefix_tokens=s.num_prefix_tokens)
    return matrix.to(v.dtype)


def _product(matrix: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return S v, with S zero where the mask is False."""
    if mask is None:
        return _batched_product(matrix, v)
    if mask.ndim < 2 or mask.shape[-2] == 1:  # masking the values leaves one S for all inputs
        visible = mask[..., None] if mask.ndim < 2 else mask.mT
        return _batched_product(matrix, torch.where(visible, v, 0))
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    return run_within_memory(
        partial(_masked_product, matrix, v, mask),
        task="a matrix S under a mask of its own for each input",
        remedy="pass fewer inputs or tokens at once",
        device=v.device,
        needed=bytes_of_matrices(np.broadcast_shapes(mask.shape, matrix.shape), matrix.dtype, count=1),
    )


def _masked_product(matrix: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    masked = torch.where(mask, matrix, 0)
    return _batched_product(masked, v) if masked.ndim <= 3 else masked @ v


def _batched_product(matrix: Tensor, v: Tensor) -> Tensor:
    """Return S v for S (m, m) or (h, m, m), with the batch as columns of one product."""
    if matrix.ndim == 3 and v.ndim > 3:
        columns = v.movedim((-3, -2), (0, 1))
        return (matrix @ columns.flatten(2)).reshape(columns.shape).movedim((0, 1), (-3, -2))
    if matrix.ndim == 2 and v.ndim > 2:
        columns = v.movedim(-2, 0)
        return (matrix @ columns.flatten(1)).reshape(columns.shape).movedim(0, -2)
    return matrix @ v
