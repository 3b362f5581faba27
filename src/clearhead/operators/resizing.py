r"""Resizing of a matrix over pairs of tokens to another number of tokens.

The source ties its learned S to one length. S = G 1_N / G of its remark 3 has entries g_l / (N g_j): with more tokens
of the same kind the entries shrink as 1 / N, and rows keep their sums, mean(g) / g_j. Resizing does the same.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError

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
