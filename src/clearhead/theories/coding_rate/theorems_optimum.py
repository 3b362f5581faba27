"""Statements on what maximises the rate reduction, checked by ascent from random tokens."""

import math
from functools import cache

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate
from clearhead.theories.coding_rate.optimum import (
    ascend,
    isotropic_reduction,
    largest_penalty,
    rank_constant,
    regularised_singular_values,
)
from clearhead.theories.coding_rate.statement import LANDSCAPE, MCR2
from clearhead.theories.statement import Statement, drawn

__all__ = ["OPTIMUM"]

SIZES, WIDTH = (20, 20, 20), 12
START = 0


@cache
def _maximum(dtype: torch.dtype, eps: float, penalty: float | None, seed: int) -> Tensor:
    return ascend(drawn(3, 20, WIDTH, seed=seed, dtype=dtype).double(), eps=eps, penalty=penalty)


def _penalised(dtype: torch.dtype, *, of: float = 1.0) -> float:
    """How far singular values are from those predicted, of the penalty or of another, and classes from orthogonal."""
    eps, worst = math.sqrt(0.5), 0.0
    for share in (0.2, 0.8):
        penalty = share * largest_penalty(SIZES, width=WIDTH, eps=eps)
        (want, *_) = regularised_singular_values(SIZES, width=WIDTH, eps=eps, penalty=of * penalty)
        z = _maximum(dtype, eps, penalty, START)
        values = torch.linalg.svdvals(z)
        kept = values[values > values.max() / 2]
        across = torch.stack([z[i] @ z[j].mT for i, j in ((0, 1), (0, 2), (1, 2))])
        missed = (kept - want).abs().max() / want, across.abs().max() / want**2
        worst = max(worst, *(float(one) for one in missed))
    return worst


def _reduction(z: Tensor, eps: float) -> float:
    return float(coding_rate(z.flatten(0, 1), eps=eps) - coding_rate(z, eps=eps).mean())


def _unit_tokens(dtype: torch.dtype) -> float:
    """How far the better of two ascents is from orthogonal classes that fill their directions evenly."""
    want = isotropic_reduction((4, 4, 4), SIZES, width=WIDTH, eps=0.5)
    return abs(max(_reduction(_maximum(dtype, 0.5, None, seed), 0.5) for seed in (1, 2)) / want - 1)


def _collapsed(dtype: torch.dtype) -> float:
    want = isotropic_reduction((4, 4, 4), SIZES, width=WIDTH, eps=0.5)
    return abs(isotropic_reduction((1, 1, 1), SIZES, width=WIDTH, eps=0.5) / want - 1)


def _sharpness(dtype: torch.dtype, *, constant: float | None = None) -> float:
    """The slope of a class's gain for its rank where eps^4 = c (N_k / N) (d / d_k)^2, which is zero if c is sharp."""
    found = []
    for share in (1 / 2, 1 / 3, 1 / 5, 1 / 10, 1 / 100):
        q = torch.tensor(share, dtype=dtype).double()
        c = rank_constant(float(q)) if constant is None else constant
        rank = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        squared = (c * float(q) * (97 / 5) ** 2) ** 0.5  # eps^2
        x = 97 * q / (squared * rank)
        gain = rank / 2 * (torch.log1p(x) - q * torch.log1p(x / q))
        found.append(abs(float(torch.autograd.grad(gain, rank)[0])))
    return max(found) if constant is None else min(found)


def _lower_ranks(dtype: torch.dtype, *, eps: float) -> float:
    """By how much ranks (4, 4, 4) beat (3, 3, 4)."""
    del dtype
    full, low = (isotropic_reduction(ranks, SIZES, width=WIDTH, eps=eps) for ranks in ((4, 4, 4), (3, 3, 4)))
    return max(0.0, full - low) / full


OPTIMUM = (
    Statement(
        "R6",
        "with a penalty, ascent ends in orthogonal classes whose singular values, but zeros, are the closed form's",
        _penalised,
        "the closed form at nine tenths of the penalty",
        lambda dtype: _penalised(dtype, of=0.9),
        LANDSCAPE,
        tolerance=1e-6,
    ),
    Statement(
        "R7",
        "of unit tokens, the better of two ascents has the Delta R of orthogonal classes that fill 4 directions each",
        _unit_tokens,
        "classes that have collapsed to one direction each",
        _collapsed,
        f"{MCR2}, optimal representations",
        tolerance=1e-9,
    ),
    Statement(
        "R8",
        "a class's gain is stationary at rank r where eps^4 = c q (d / r)^2, q = N_k / N, c = q / x*^2: .16 to .21",
        _sharpness,
        "c = 1/4 for every share",
        lambda dtype: _sharpness(dtype, constant=0.25),
        f"{MCR2}, optimal representations, whose c is not named",
        tolerance=1e-10,
    ),
    Statement(
        "R9",
        "beyond that bound lower ranks win: at eps = 1 in 12 dimensions (3, 3, 4) has a higher Delta R than (4, 4, 4)",
        lambda dtype: _lower_ranks(dtype, eps=1.0),
        "eps = .5, within the bound",
        lambda dtype: _lower_ranks(dtype, eps=0.5),
        f"{MCR2}, optimal representations",
    ),
)
