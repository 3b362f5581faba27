"""Statements on one step of attention: when it lowers the coding rate, counted over drawn tokens."""

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import subspace_rate_gradient
from clearhead.theories.coding_rate.change import RateChange, rate_change
from clearhead.theories.coding_rate.drawn import Kind, draw_bases, draw_tokens
from clearhead.theories.coding_rate.statement import CRATE, HU, apart
from clearhead.theories.coding_rate.steps import (
    exact_step,
    linear_attention,
    neumann_step,
    paper_step,
    released_step,
)
from clearhead.theories.statement import Statement

__all__ = ["STEPS"]

ERRORS = (1.0, 0.5, 0.1)
Step = Callable[[Tensor, Tensor, float], Tensor]
Found = Callable[[RateChange], Tensor]


@cache
def _tokens(dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], ...]:
    """Five trials of each kind, and their subspaces."""
    found = []
    for kind in Kind:
        generator = torch.Generator().manual_seed(0)
        bases = draw_bases(4, 32, 8, generator=generator)
        found.append((draw_tokens(kind, bases, trials=5, n=128, generator=generator).to(dtype), bases.to(dtype)))
    return tuple(found)


def _changes(dtype: torch.dtype, step: Step, errors: tuple[float, ...]) -> Iterator[RateChange]:
    for z, bases in _tokens(dtype):
        for eps in errors:
            yield rate_change(z, step(z, bases, eps), bases=bases, eps=eps)


def _share_not(dtype: torch.dtype, step: Step, holds: Found, errors: tuple[float, ...] = ERRORS) -> float:
    """The share of trials in which the step does not do what is said of it."""
    return float(torch.cat([~holds(change) for change in _changes(dtype, step, errors)]).double().mean())


def _falls(change: RateChange) -> Tensor:
    return change.raw < 0


def _rises(change: RateChange) -> Tensor:
    return change.raw > 0


def _both_fall(change: RateChange) -> Tensor:
    return (change.raw < 0) & (change.unit_norm < 0)


def _parted(change: RateChange) -> Tensor:
    return (change.raw > 0) & (change.unit_norm < 0)


def _exact(rate: float) -> Step:
    return lambda z, bases, eps: exact_step(z, bases, rate=rate, eps=eps)


def _released(rate: float) -> Step:
    return lambda z, bases, eps: released_step(z, bases, rate=rate, sharpness=1.0)


def _first_order(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return neumann_step(z, bases, rate=0.1, eps=eps)


def _paper(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return paper_step(z, bases, rate=0.1, eps=eps)


def _expansion(dtype: torch.dtype, beyond: Found) -> float:
    """Falls at eps = 1, where a s^2 is about .4, and at eps = .5 and .1, where it is 1.5 to 46, does what is said."""
    return max(_share_not(dtype, _first_order, _falls, (1.0,)), _share_not(dtype, _first_order, beyond, (0.5, 0.1)))


def _null_falls_more(dtype: torch.dtype, *, attention: bool = True) -> float:
    """The share of trials in which the paper's step lowers the raw rate more than .9 Z does, or .9 Z than itself."""
    shrunk = list(_changes(dtype, lambda z, bases, eps: 0.9 * z, ERRORS))
    steps = list(_changes(dtype, _paper, ERRORS)) if attention else shrunk
    return float(torch.cat([~(n.raw < s.raw) for n, s in zip(shrunk, steps, strict=True)]).double().mean())


def _lemma(dtype: torch.dtype, *, inverse: bool = True) -> float:
    """<grad R^c, linear attention> against a sum tr((I + a V^T V)^-1 (V^T V)^2), or without the inverse."""
    found = []
    for z, bases in _tokens(dtype):
        for eps in ERRORS:
            v, a = z.unsqueeze(-3) @ bases, 8 / (128 * eps**2)
            gram = v.mT @ v
            square = gram @ gram
            solved = torch.linalg.solve(torch.eye(8, dtype=dtype) + a * gram, square) if inverse else square
            want = a * solved.diagonal(dim1=-2, dim2=-1).sum(dim=(-2, -1))
            assert bool((want > 0).all()), "a sum of squares"
            inner = (subspace_rate_gradient(z, bases, eps=eps) * linear_attention(z, bases)).sum(dim=(-2, -1))
            found.append(apart(inner, want))
    return max(found) if inverse else min(found)


STEPS = (
    Statement(
        "R10",
        "a step of the exact gradient, kappa = 1 / a, lowers R^c in every trial (raw; eps = 1, .5, .1)",
        lambda dtype: _share_not(dtype, _exact(1.0), _falls),
        "the step upwards",
        lambda dtype: _share_not(dtype, _exact(-1.0), _falls),
        f"{CRATE}, section 2.3",
    ),
    Statement(
        "R11",
        "the first-order step lowers raw R^c where a s_max^2 < 1, and raises it where a s_max^2 is 1.5 to 46",
        lambda dtype: _expansion(dtype, _rises),
        "that it lowers it in both",
        lambda dtype: _expansion(dtype, _falls),
        f"{CRATE}, section 2.3, on its range",
    ),
    Statement(
        "R12",
        "the paper's step, (1 - kappa a) Z + kappa a MSSA(Z), lowers R^c both raw and of unit tokens",
        lambda dtype: _share_not(dtype, _paper, _both_fall),
        "the released step, Z + SSA(Z)",
        lambda dtype: _share_not(dtype, _released(1.0), _both_fall),
        f"{CRATE}, section 2.3",
    ),
    Statement(
        "R13",
        "tokens that only shrink, .9 Z, lower raw R^c by more than the paper's step of kappa = .1 / a",
        _null_falls_more,
        "that they do so by more than they do",
        lambda dtype: _null_falls_more(dtype, attention=False),
        f"cf. {HU}",
    ),
    Statement(
        "R14",
        "the released step, Z + SSA(Z), raises raw R^c and lowers that of unit tokens",
        lambda dtype: _share_not(dtype, _released(1.0), _parted),
        "its negation, Z - .1 SSA(Z)",
        lambda dtype: _share_not(dtype, _released(-0.1), _parted),
        f"cf. {HU}, on the sign of MSSA",
    ),
    Statement(
        "R15",
        "linear attention is ascent on raw R^c: times the gradient it is a sum of a tr((I + a V^T V)^-1 (V^T V)^2) > 0",
        _lemma,
        "without the inverse",
        lambda dtype: _lemma(dtype, inverse=False),
        f"cf. {HU}",
    ),
)
