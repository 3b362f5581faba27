r"""Theorems on what maximises the rate reduction Delta R, checked by gradient ascent from random tokens.

Three classes of 20 tokens in R^12; q = N_k / N is a class's share of the tokens, r its rank.
"""

import math
from functools import cache

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate
from clearhead_lab.theorems.coding_rate.citations import LANDSCAPE, MCR2
from clearhead_lab.theorems.coding_rate.optimum import (
    ascend,
    isotropic_reduction,
    largest_penalty,
    rank_constant,
    regularised_singular_values,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor

__all__ = ["OPTIMUM_THEOREMS"]

SIZES, WIDTH = (20, 20, 20), 12
FULL_RANKS = (4, 4, 4)


@cache
def _local_maximum(dtype: torch.dtype, eps: float, penalty: float | None, seed: int) -> Tensor:
    return ascend(normal_tensor(3, 20, WIDTH, seed=seed, dtype=dtype).double(), eps=eps, penalty=penalty)


def _closed_form_error(dtype: torch.dtype, *, penalty_factor: float = 1.0) -> float:
    """Return the larger relative error of the singular values and of the classes' orthogonality.

    The closed form is taken at `penalty_factor` times the penalty of the ascent.
    """
    eps, largest = math.sqrt(0.5), 0.0
    for share in (0.2, 0.8):
        penalty = share * largest_penalty(SIZES, width=WIDTH, eps=eps)
        expected, *_ = regularised_singular_values(SIZES, width=WIDTH, eps=eps, penalty=penalty_factor * penalty)
        z = _local_maximum(dtype, eps, penalty, seed=0)
        values = torch.linalg.svdvals(z)
        nonzero = values[values > values.max() / 2]
        across = torch.stack([z[i] @ z[j].mT for i, j in ((0, 1), (0, 2), (1, 2))])
        value_error = float((nonzero - expected).abs().max()) / expected
        largest = max(largest, value_error, float(across.abs().max()) / expected**2)
    return largest


def _full_rank_reduction(eps: float = 0.5) -> float:
    return isotropic_reduction(FULL_RANKS, SIZES, width=WIDTH, eps=eps)


def _ascent_error(dtype: torch.dtype) -> float:
    """Return the relative error of the better of two ascents over unit tokens."""

    def reduction(z: Tensor) -> float:
        return float(coding_rate(z.flatten(0, 1), eps=0.5) - coding_rate(z, eps=0.5).mean())

    best = max(reduction(_local_maximum(dtype, 0.5, None, seed)) for seed in (1, 2))
    return abs(best / _full_rank_reduction() - 1)


def _collapse_error(_: torch.dtype) -> float:
    """Return the same error for classes that have collapsed to one direction each."""
    return abs(isotropic_reduction((1, 1, 1), SIZES, width=WIDTH, eps=0.5) / _full_rank_reduction() - 1)


def _gain_slopes(dtype: torch.dtype, *, constant: float | None = None) -> list[float]:
    """Return |dg/dr| at the rank r with eps^4 = c q (d / r)^2, for several q; zero if the constant c is sharp.

    g(r) is `isotropic_gain`; c is `rank_constant(q)` unless another constant is given.
    """
    slopes = []
    for share in (1 / 2, 1 / 3, 1 / 5, 1 / 10, 1 / 100):
        q = torch.tensor(share, dtype=dtype).double()
        c = rank_constant(float(q)) if constant is None else constant
        rank = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        eps_squared = (c * float(q) * (97 / 5) ** 2) ** 0.5
        x = 97 * q / (eps_squared * rank)
        gain = rank / 2 * (torch.log1p(x) - q * torch.log1p(x / q))
        slopes.append(abs(float(torch.autograd.grad(gain, rank)[0])))
    return slopes


def _full_rank_advantage(_: torch.dtype, *, eps: float) -> float:
    """Return by how much Delta R of ranks (4, 4, 4) exceeds that of (3, 3, 4), relative to it."""
    full, low = _full_rank_reduction(eps), isotropic_reduction((3, 3, 4), SIZES, width=WIDTH, eps=eps)
    return max(0.0, full - low) / full


OPTIMUM_THEOREMS = (
    Theorem(
        "R6",
        "with a penalty on |Z|^2, ascent on Delta R ends in orthogonal classes with the closed form's singular values",
        _closed_form_error,
        "the closed form at 0.9 times the penalty",
        lambda dtype: _closed_form_error(dtype, penalty_factor=0.9),
        LANDSCAPE,
        tolerance=1e-6,
    ),
    Theorem(
        "R7",
        "for unit tokens, the better of two ascents reaches Delta R of orthogonal isotropic classes of rank 4",
        _ascent_error,
        "classes collapsed to one direction each",
        _collapse_error,
        f"{MCR2}, optimal representations",
        tolerance=1e-9,
    ),
    Theorem(
        "R8",
        "a class's gain is stationary at the rank r with eps^4 = c q (d / r)^2, q = N_k / N, c = q / x*^2",
        lambda dtype: max(_gain_slopes(dtype)),
        "c = 1/4 for every share",
        lambda dtype: min(_gain_slopes(dtype, constant=0.25)),
        f"{MCR2}, optimal representations, which does not give c",
        tolerance=1e-10,
    ),
    Theorem(
        "R9",
        "beyond that bound lower ranks are better: for eps = 1 and d = 12, ranks (3, 3, 4) beat (4, 4, 4)",
        lambda dtype: _full_rank_advantage(dtype, eps=1.0),
        "eps = 0.5, within the bound",
        lambda dtype: _full_rank_advantage(dtype, eps=0.5),
        f"{MCR2}, optimal representations",
    ),
)
