r"""Theorems on the coding rate itself: its gradient, its determinant and the rate reduction of classes.

Tokens Z in R^{n x d} are rows, alpha = d / (n eps^2). U_k in R^{d x p} spans subspace k, V_k = Z U_k and
a = p / (n eps^2). R = log det(I + alpha Z^T Z) / 2, and R^c is the sum over k of log det(I + a V_k^T V_k) / 2.
The names of papers are those that the theorems on coding rates come from.
"""

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
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

MCR2 = "Yu et al. 2020 (arXiv 2006.08558)"
CRATE = "Yu et al. 2023 (arXiv 2306.01129)"
LANDSCAPE = "Wang et al. 2024 (arXiv 2406.01909)"
HU = "Hu et al. 2024 (arXiv 2411.17182)"
TOST = "Wu et al. 2024 (arXiv 2412.17810)"
DENOISING = "Wang et al. 2025 (arXiv 2506.03790)"

N, D, K, P, EPS = 23, 7, 3, 2, 0.5
ALPHA = D / (N * EPS**2)


def _random_tokens(dtype: torch.dtype) -> Iterator[Tensor]:
    for seed in range(5):
        yield normal_tensor(N, D, seed=seed, dtype=dtype)


def _bases(dtype: torch.dtype) -> Tensor:
    bases: Tensor = torch.linalg.qr(normal_tensor(K, D, P, seed=99, dtype=torch.float64))[0].to(dtype)
    return bases


def _autograd_gradient(z: Tensor, bases: Tensor | None, width: int) -> Tensor:
    """Return the gradient of torch's determinant, with width / (n eps^2) for alpha or a."""
    leaf = z.clone().requires_grad_()
    projected = leaf if bases is None else leaf @ bases
    rate = log_det_slow(projected, a=width / (len(z) * EPS**2)).sum() / 2
    return torch.autograd.grad(rate, leaf)[0]


def _subspace_gradient_errors(dtype: torch.dtype, *, width: int) -> list[float]:
    bases = _bases(dtype)
    return [
        relative_residual(subspace_rate_gradient(z, bases, eps=EPS), _autograd_gradient(z, bases, width))
        for z in _random_tokens(dtype)
    ]


def _gradient_error(dtype: torch.dtype) -> float:
    of_rate = [
        relative_residual(rate_gradient(z, eps=EPS), _autograd_gradient(z, None, D)) for z in _random_tokens(dtype)
    ]
    return max(*of_rate, *_subspace_gradient_errors(dtype, width=P))


def _determinant_errors(dtype: torch.dtype, *, alpha: float) -> list[float]:
    """Compare log det(I + alpha Z Z^T) with log det(I + ALPHA Z^T Z)."""
    return [relative_residual(log_det_slow(z.mT, a=alpha), log_det_slow(z, a=ALPHA)) for z in _random_tokens(dtype)]


def _volume_errors(dtype: torch.dtype, *, heights: bool) -> list[float]:
    """Compare log det Z Z^T of three tokens with the log of the product of their squared heights or lengths."""
    errors = []
    for z in _random_tokens(dtype):
        three = z[:3]
        factors = torch.linalg.qr(three.mT)[1].diagonal().abs() if heights else three.norm(dim=-1)
        errors.append(relative_residual(2 * factors.log().sum(), torch.logdet(three @ three.mT)))
    return errors


def _added_token_errors(dtype: torch.dtype, *, inverse: bool) -> list[float]:
    """Compare log det of n tokens with log det of n - 1 plus log(1 + a z^T M z), M the inverse or the identity."""
    errors = []
    for tokens in _random_tokens(dtype):
        others, z = tokens[:-1], tokens[-1]
        solved = torch.linalg.solve(torch.eye(D, dtype=dtype) + ALPHA * others.mT @ others, z) if inverse else z
        expected = log_det(others, a=ALPHA) + torch.log1p(ALPHA * z @ solved)
        errors.append(relative_residual(expected, log_det(tokens, a=ALPHA)))
    return errors


def _reduction_error(dtype: torch.dtype) -> float:
    """Return how far Delta R / R falls below zero, and how far it is from zero for classes of equal second moments."""
    labels, largest = torch.arange(N) % 3, 0.0
    rotation = torch.linalg.qr(normal_tensor(N, N, seed=7, dtype=torch.float64))[0].to(dtype)
    for z in _random_tokens(dtype):
        reduction = rate_reduction(z, labels=labels, eps=EPS)
        # Rotating the tokens among themselves, Z -> O Z, does not change Z^T Z.
        equal_moments = torch.cat([z, rotation @ z])
        of_equal = rate_reduction(equal_moments, labels=torch.arange(2).repeat_interleave(N), eps=EPS)
        largest = max(
            largest, float(-reduction.value / reduction.expansion), float(of_equal.value.abs() / of_equal.expansion)
        )
    return largest


def _unweighted_excess(dtype: torch.dtype) -> float:
    """Return the least (sum_k R(Z_k) - R(Z)) / R(Z)."""
    labels = torch.arange(N) % 3
    excesses = []
    for z in _random_tokens(dtype):
        rate = coding_rate(z, eps=EPS)
        excesses.append(float((class_rates(z, labels=labels, eps=EPS).rates.sum() - rate) / rate))
    return min(excesses)


RATE_THEOREMS = (
    Theorem(
        "R1",
        "grad R = alpha Z (I + alpha Z^T Z)^-1, and grad R^c = sum_k a V_k (I + a V_k^T V_k)^-1 U_k^T",
        _gradient_error,
        "d in place of p in a",
        lambda dtype: min(_subspace_gradient_errors(dtype, width=D)),
        f"{CRATE}, section 2.3",
    ),
    Theorem(
        "R2",
        "log det(I + alpha Z^T Z) = log det(I + alpha Z Z^T)",
        lambda dtype: max(_determinant_errors(dtype, alpha=ALPHA)),
        "alpha of the transposed tokens, n / (d eps^2)",
        lambda dtype: min(_determinant_errors(dtype, alpha=N / (D * EPS**2))),
        f"{MCR2}, section 2.1 (Sylvester)",
    ),
    Theorem(
        "R3",
        "the Gram determinant is a squared volume: the product of each vector's squared height over the ones before",
        lambda dtype: max(_volume_errors(dtype, heights=True)),
        "lengths in place of heights",
        lambda dtype: min(_volume_errors(dtype, heights=False)),
        "Gram determinants",
    ),
    Theorem(
        "R4",
        "for fixed a, one more token z adds log(1 + a z^T (I + a Z^T Z)^-1 z) >= 0 to log det(I + a Z^T Z)",
        lambda dtype: max(_added_token_errors(dtype, inverse=True)),
        "without the inverse, as if z were orthogonal to the other tokens",
        lambda dtype: min(_added_token_errors(dtype, inverse=False)),
        "matrix determinant lemma",
    ),
    Theorem(
        "R5",
        "Delta R = R - R^c of labelled classes is never negative, and zero if all classes have the same second moments",
        _reduction_error,
        "class rates summed without weights, which exceed R",
        _unweighted_excess,
        f"{MCR2}, section 2.2",
    ),
)
