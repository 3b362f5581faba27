r"""Centred kernel alignment of two sets of vectors on the same tokens, as published and without bias.

    CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y))

(Kornblith et al. 2019). The usual estimate of HSIC, tr(K H L H), is above zero for unrelated sets, the more the columns
near the tokens in number; that of Song et al. 2012 has no bias:

    HSIC_u(K, L) = [tr(K L) + 1^T K 1 1^T L 1 / ((n-1)(n-2)) - 2 1^T K L 1 / (n-2)] / (n (n-3)),  diagonals set to zero.

Both follow from the entries' products, the sums of rows and the diagonals, so neither centred nor hollow matrices are
formed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float

__all__ = ["Gram", "biased_cka", "gaussian_gram", "linear_gram", "unbiased_cka"]

FEWEST = 4
"""The unbiased estimate divides by n - 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """A Gram matrix with what every alignment needs of it: sums of its rows, its diagonal, and its square."""

    entries: Float[Tensor, "*t m m"]
    rows: Float[Tensor, "*t m"]
    diagonal: Float[Tensor, "*t m"]
    square: Float[Tensor, "*t"]

    @classmethod
    def of(cls, entries: Float[Tensor, "*t m m"]) -> "Gram":
        """The same matrix with its sums."""
        return cls(
            entries=entries,
            rows=entries.sum(dim=-1),
            diagonal=entries.diagonal(dim1=-2, dim2=-1),
            square=_products(entries, entries),
        )


def linear_gram(x: Float[Tensor, "*t m e"]) -> Gram:
    """Inner products of the rows, in units of the largest entry."""
    return Gram.of(_inner_products(x))


def gaussian_gram(x: Float[Tensor, "*t m e"]) -> Gram:
    """exp(-|x_i - x_j|^2 / 2 sigma^2), sigma^2 the median of the squared distances that are not zero."""
    inner = _inner_products(x)
    square = inner.diagonal(dim1=-2, dim2=-1)
    apart = (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * inner).clamp_min(0)
    return Gram.of((-apart / (2 * _median_of_positive(apart.flatten(-2))[..., None, None])).exp())


def _median_of_positive(x: Float[Tensor, "*t n"]) -> Float[Tensor, "*t"]:
    """The lower median of the entries that are not zero; NaN where all are."""
    zeros = (x == 0).sum(dim=-1)
    n = x.shape[-1]
    if bool((zeros == zeros.flatten()[0]).all()) and int(zeros.flatten()[0]) < n:
        none = int(zeros.flatten()[0])
        return x.kthvalue(none + (n - none + 1) // 2, dim=-1).values
    return torch.where(x > 0, x, torch.nan).nanmedian(dim=-1).values


def _inner_products(x: Tensor) -> Tensor:
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    return x @ x.mT


def biased_cka(a: Gram, b: Gram) -> Float[Tensor, "*t"]:
    """CKA by tr(K H L H); NaN where one of the sets does not vary."""
    n = a.rows.shape[-1]

    def centred(cross: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
        return cross - 2 / n * (of_a * of_b).sum(dim=-1) + of_a.sum(dim=-1) * of_b.sum(dim=-1) / n**2

    return _ratio(
        centred(_products(a.entries, b.entries), a.rows, b.rows),
        centred(a.square, a.rows, a.rows),
        centred(b.square, b.rows, b.rows),
    )


def unbiased_cka(a: Gram, b: Gram) -> Float[Tensor, "*t"]:
    """CKA by the estimate without bias; NaN for fewer than four tokens, or where a set does not seem to vary."""
    n = a.rows.shape[-1]
    of_a, of_b = a.rows - a.diagonal, b.rows - b.diagonal

    def hollow(products: Tensor, x: Gram, y: Gram, of_x: Tensor, of_y: Tensor) -> Tensor:
        trace = products - (x.diagonal * y.diagonal).sum(dim=-1)
        both = of_x.sum(dim=-1) * of_y.sum(dim=-1) / ((n - 1) * (n - 2))
        return trace + both - 2 / (n - 2) * (of_x * of_y).sum(dim=-1)

    cross = _products(a.entries, b.entries)
    if n < FEWEST:
        return torch.full_like(cross, torch.nan)
    return _ratio(
        hollow(cross, a, b, of_a, of_b), hollow(a.square, a, a, of_a, of_a), hollow(b.square, b, b, of_b, of_b)
    )


def _products(k: Tensor, other: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(k.flatten(-2), other.flatten(-2))
    return products


def _ratio(cross: Tensor, first: Tensor, second: Tensor) -> Tensor:
    known = (first > 0) & (second > 0)
    return torch.where(known, cross / torch.where(known, first * second, 1).sqrt(), torch.nan)
