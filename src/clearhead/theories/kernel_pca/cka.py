r"""Centred kernel alignment (CKA) of two sets of vectors on the same tokens, biased as published and unbiased.

    CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y))

(Kornblith et al. 2019). The usual estimate of HSIC, tr(K H L H), is positive for unrelated sets, and more so if there
are nearly as many columns as tokens. The estimate of Song et al. 2012 is unbiased:

    HSIC_u(K, L) = [tr(K L) + 1^T K 1 1^T L 1 / ((n-1)(n-2)) - 2 1^T K L 1 / (n-2)] / (n (n-3)),  diagonals set to zero.

Both follow from inner products, row sums and diagonals, so no centred or zero-diagonal matrix is formed. For linear
kernels K = X X^T and L = Y Y^T, tr(K L) = |X^T Y|^2, so no Gram matrix is formed either.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float

FEWEST = 4
"""The unbiased estimate divides by n - 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """A Gram matrix by its row sums, its diagonal and its squared Frobenius norm, which every alignment uses.

    entries: the matrix; of a linear kernel its factor X, K = X X^T
    """

    entries: Float[Tensor, "*t m _"]
    rows: Float[Tensor, "*t m"]
    diagonal: Float[Tensor, "*t m"]
    square: Float[Tensor, "*t"]
    linear: bool = False

    @classmethod
    def of(cls, entries: Float[Tensor, "*t m m"]) -> "Gram":
        """Compute the sums of a Gram matrix."""
        return cls(
            entries=entries,
            rows=entries.sum(dim=-1),
            diagonal=entries.diagonal(dim1=-2, dim2=-1),
            square=_products(entries, entries),
        )

    def product(self, other: "Gram") -> Float[Tensor, "*t"]:
        """Return tr(K L). Both kernels are linear, or neither is."""
        if self.linear:
            return (self.entries.mT @ other.entries).square().sum(dim=(-2, -1))
        return _products(self.entries, other.entries)


def linear_gram(x: Float[Tensor, "*t m e"]) -> Gram:
    """Return inner products of the rows after dividing by the largest entry."""
    x = _scaled(x)
    return Gram(
        entries=x,
        rows=(x @ x.sum(dim=-2).unsqueeze(-1)).squeeze(-1),
        diagonal=x.square().sum(dim=-1),
        square=(x.mT @ x).square().sum(dim=(-2, -1)),
        linear=True,
    )


def gaussian_gram(x: Float[Tensor, "*t m e"]) -> Gram:
    """Return exp(-|x_i - x_j|^2 / (2 sigma^2)), sigma^2 the median of the nonzero squared distances."""
    x = _scaled(x)
    inner = x @ x.mT
    square = inner.diagonal(dim1=-2, dim2=-1)
    distance = (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * inner).clamp_min(0)
    m = distance.shape[-1]
    first, second = torch.triu_indices(m, m, offset=1, device=distance.device)
    pairs = distance.flatten(-2).index_select(-1, first * m + second)
    return Gram.of((-distance / (2 * _median_of_positive(pairs)[..., None, None])).exp())


def _median_of_positive(x: Float[Tensor, "*t n"]) -> Float[Tensor, "*t"]:
    """Return the lower median of the nonzero entries; NaN if all are zero."""
    zeros = (x == 0).sum(dim=-1)
    n = x.shape[-1]
    count = int(zeros.flatten()[0])
    # kthvalue is faster than nanmedian, and fits if all rows have the same number of zeros.
    if bool((zeros == count).all()) and count < n:
        return x.kthvalue(count + (n - count + 1) // 2, dim=-1).values
    return torch.where(x > 0, x, torch.nan).nanmedian(dim=-1).values


def _scaled(x: Tensor) -> Tensor:
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    return x / torch.where(largest > 0, largest, 1)


def biased_cka(a: Gram, b: Gram) -> Float[Tensor, "*t"]:
    """Return CKA with HSIC estimated by tr(K H L H); NaN if one of the sets has no variance."""
    n = a.rows.shape[-1]

    def centred(cross: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
        return cross - 2 / n * (of_a * of_b).sum(dim=-1) + of_a.sum(dim=-1) * of_b.sum(dim=-1) / n**2

    return _ratio(
        centred(a.product(b), a.rows, b.rows),
        centred(a.square, a.rows, a.rows),
        centred(b.square, b.rows, b.rows),
    )


def unbiased_cka(a: Gram, b: Gram) -> Float[Tensor, "*t"]:
    """Return CKA with the unbiased estimate of HSIC; NaN for fewer than four tokens or a nonpositive HSIC(X, X)."""
    n = a.rows.shape[-1]
    of_a, of_b = a.rows - a.diagonal, b.rows - b.diagonal

    def without_diagonal(products: Tensor, x: Gram, y: Gram, of_x: Tensor, of_y: Tensor) -> Tensor:
        trace = products - (x.diagonal * y.diagonal).sum(dim=-1)
        both = of_x.sum(dim=-1) * of_y.sum(dim=-1) / ((n - 1) * (n - 2))
        return trace + both - 2 / (n - 2) * (of_x * of_y).sum(dim=-1)

    cross = a.product(b)
    if n < FEWEST:
        return torch.full_like(cross, torch.nan)
    return _ratio(
        without_diagonal(cross, a, b, of_a, of_b),
        without_diagonal(a.square, a, a, of_a, of_a),
        without_diagonal(b.square, b, b, of_b, of_b),
    )


def _products(k: Tensor, other: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(k.flatten(-2), other.flatten(-2))
    return products


def _ratio(cross: Tensor, first: Tensor, second: Tensor) -> Tensor:
    defined = (first > 0) & (second > 0)
    return torch.where(defined, cross / torch.where(defined, first * second, 1).sqrt(), torch.nan)
