r"""A matrix over pairs of tokens, for another number of tokens.

The source ties its learned S to one length. S = G 1_N / G of its remark 3 has entries g_l / (N g_j): with more tokens
of the same kind they shrink as 1 / N, and rows keep their sums, mean(g) / g_j. So they do here.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError

__all__ = ["Layout", "resized"]

Layout = Literal["line", "grid"]
"""How tokens lie: one after another, or on a square grid, row by row."""


def resized(
    matrix: Float[Tensor, "... n n"], tokens: int, *, layout: Layout = "line", apart: int = 0
) -> Float[Tensor, "... m m"]:
    r"""The matrix for so many tokens, interpolated linearly over both of its token axes.

    .. math:: S' = \tfrac{n}{m}\, W S W^\top

    with W (m, n) the linear interpolation of tokens at the middles of equal cells, widened where there are fewer of
    them than before, so that no token is passed over. The mean over n tokens, entries 1 / n, becomes the mean over m.
    Rows keep their sums, interpolated between rows, exactly so if m is a multiple of n and nearly so else.

    layout: "line", or "grid" for a square of patches, interpolated along both of its sides
    apart: how many tokens come first that are not among the others, as a class token does; they keep
        their entries, and are not counted in n and m above
    """
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1]:
        raise ShapeError(f"expected a matrix (..., n, n); got {tuple(matrix.shape)}")
    before = matrix.shape[-1]
    if layout not in ("line", "grid"):
        raise InputError(f'expected a layout "line" or "grid"; got {layout!r}')
    if not 0 <= apart < min(before, tokens):
        raise InputError(
            f"expected fewer tokens kept apart than there are, {before} before and {tokens} after; got {apart}"
        )
    if tokens == before:
        return matrix
    wide = torch.promote_types(matrix.dtype, torch.float32)
    if layout == "grid":
        sides = _side(before - apart), _side(tokens - apart)
        along = _interpolation(*sides, dtype=wide, device=matrix.device)
        weights = torch.kron(along, along)
    else:
        weights = _interpolation(before - apart, tokens - apart, dtype=wide, device=matrix.device)
    share = (before - apart) / (tokens - apart)
    whole = _after(apart, weights) @ matrix.to(wide) @ _after(apart, share * weights).mT
    return whole.to(matrix.dtype)


def _after(apart: int, weights: Tensor) -> Tensor:
    """The weights below and beside those of tokens that stay what they are."""
    kept = torch.eye(apart, weights.shape[1] + apart, dtype=weights.dtype, device=weights.device)
    return torch.cat([kept, pad(weights, (apart, 0))])


def _side(tokens: int) -> int:
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise InputError(f"expected as many tokens as a square grid has; got {tokens} beside those kept apart")
    return side


def _interpolation(before: int, after: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(after, before): each row the weights of the tokens before."""
    one_each = torch.eye(before, dtype=dtype, device=device)[None, None]
    widened: Tensor = interpolate(one_each, size=(before, after), mode="bilinear", antialias=True)
    return widened[0, 0].mT
