"""Statements on the rate itself: its gradient, its two sides, the volume that it is of, and what classes take off."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import (
    class_rates,
    coding_rate,
    rate_gradient,
    rate_reduction,
    subspace_rate_gradient,
)
from clearhead.numerics.logdet import log_det, log_det_slow
from clearhead.theories.coding_rate.statement import CRATE, MCR2, apart
from clearhead.theories.statement import Statement, drawn

__all__ = ["RATE"]

N, D, K, P, EPS = 23, 7, 3, 2, 0.5
SEEDS = range(5)


def _tokens(dtype: torch.dtype) -> Iterator[Tensor]:
    for seed in SEEDS:
        yield drawn(N, D, seed=seed, dtype=dtype)


def _bases(dtype: torch.dtype) -> Tensor:
    found: Tensor = torch.linalg.qr(drawn(K, D, P, seed=99, dtype=torch.float64))[0].to(dtype)
    return found


def _by_autograd(z: Tensor, bases: Tensor | None, width: int) -> Tensor:
    """Through torch's determinant, with alpha for tokens of this width."""
    leaf = z.clone().requires_grad_()
    seen = leaf if bases is None else leaf @ bases
    rate = log_det_slow(seen, a=width / (len(z) * EPS**2)).sum() / 2
    return torch.autograd.grad(rate, leaf)[0]


def _gradients(dtype: torch.dtype) -> float:
    bases = _bases(dtype)
    return max(
        max(
            apart(rate_gradient(z, eps=EPS), _by_autograd(z, None, D)),
            apart(subspace_rate_gradient(z, bases, eps=EPS), _by_autograd(z, bases, P)),
        )
        for z in _tokens(dtype)
    )


def _gradient_with_another_width(dtype: torch.dtype) -> float:
    bases = _bases(dtype)
    return min(apart(subspace_rate_gradient(z, bases, eps=EPS), _by_autograd(z, bases, D)) for z in _tokens(dtype))


def _two_sides(dtype: torch.dtype, *, swapped: bool = False) -> float:
    """By how much the determinants of the two sides differ, with alpha of the transposed tokens if asked."""
    found = []
    for z in _tokens(dtype):
        alpha, other = D / (N * EPS**2), N / (D * EPS**2)
        found.append(apart(log_det_slow(z.mT, a=other if swapped else alpha), log_det_slow(z, a=alpha)))
    return min(found) if swapped else max(found)


def _volumes(dtype: torch.dtype, *, heights: bool = True) -> float:
    """The Gram determinant of a few tokens against the product of their heights, or of their lengths."""
    found = []
    for z in _tokens(dtype):
        few = z[:3]
        volume = torch.linalg.qr(few.mT)[1].diagonal().abs() if heights else few.norm(dim=-1)
        found.append(apart(2 * volume.log().sum(), torch.logdet(few @ few.mT)))
    return max(found) if heights else min(found)


def _one_more(dtype: torch.dtype, *, inverse: bool = True) -> float:
    """log det with a token more, at a fixed a, against that without it and log(1 + a z^T (I + a Z^T Z)^-1 z)."""
    a, found = D / (N * EPS**2), []
    for z in _tokens(dtype):
        before, token = z[:-1], z[-1]
        seen = torch.linalg.solve(torch.eye(D, dtype=dtype) + a * before.mT @ before, token) if inverse else token
        found.append(apart(log_det(before, a=a) + torch.log1p(a * token @ seen), log_det(z, a=a)))
    return max(found) if inverse else min(found)


def _classes(dtype: torch.dtype) -> float:
    """How far Delta R is below zero, and off zero where every class has the same products, relative to R."""
    labels, worst = torch.arange(N) % 3, 0.0
    for z in _tokens(dtype):
        some = rate_reduction(z, labels=labels, eps=EPS)
        turn = torch.linalg.qr(drawn(N, N, seed=7, dtype=torch.float64))[0].to(dtype)
        both = rate_reduction(torch.cat([z, turn @ z]), labels=torch.arange(2).repeat_interleave(N), eps=EPS)
        worst = max(worst, float(-some.value / some.expansion), float(both.value.abs() / both.expansion))
    return worst


def _classes_without_weights(dtype: torch.dtype) -> float:
    labels = torch.arange(N) % 3
    each = [(coding_rate(z, eps=EPS), class_rates(z, labels=labels, eps=EPS).rates.sum()) for z in _tokens(dtype)]
    return min(float((summed - whole) / whole) for whole, summed in each)


RATE = (
    Statement(
        "R1",
        "the gradient of R is alpha Z (I + alpha Z^T Z)^-1, that of R^c the sum of a V_k (I + a V_k^T V_k)^-1 U_k^T",
        _gradients,
        "d in place of p in a",
        _gradient_with_another_width,
        f"{CRATE}, section 2.3",
    ),
    Statement(
        "R2",
        "log det(I + alpha Z^T Z) is the same on the side of the tokens",
        _two_sides,
        "the alpha of the transposed tokens",
        lambda dtype: _two_sides(dtype, swapped=True),
        f"{MCR2}, section 2.1 (Sylvester)",
    ),
    Statement(
        "R3",
        "the determinant of a Gram matrix is a squared volume: the product of squared heights over those before",
        _volumes,
        "lengths in place of heights",
        lambda dtype: _volumes(dtype, heights=False),
        "Gram determinants",
    ),
    Statement(
        "R4",
        "at a fixed a, one more token adds log(1 + a z^T (I + a Z^T Z)^-1 z) >= 0 to log det(I + a Z^T Z)",
        _one_more,
        "without the inverse: as if it were orthogonal to the others",
        lambda dtype: _one_more(dtype, inverse=False),
        "the matrix determinant lemma",
    ),
    Statement(
        "R5",
        "Delta R = R - R^c of classes is not negative, and zero where all classes have the same second moments",
        _classes,
        "class rates summed without weights: R less their sum is negative",
        _classes_without_weights,
        f"{MCR2}, section 2.2",
    ),
)
