r"""Theorems on one step of attention: when it lowers R^c, as the share of random trials in which it does not.

Tokens Z are rows, V_k = Z U_k, a = p / (n eps^2), kappa is the step size and s_max the largest singular value of any
V_k. "Raw" is R^c of the tokens as they are; "unit" is R^c after every token is divided by its length.
"""

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import subspace_rate_gradient
from clearhead_lab.theorems.coding_rate.change import RateChange, rate_change
from clearhead_lab.theorems.coding_rate.citations import CRATE, HU
from clearhead_lab.theorems.coding_rate.random_tokens import TokenDistribution, draw_bases, draw_tokens
from clearhead_lab.theorems.coding_rate.steps import (
    exact_step,
    linear_attention,
    neumann_step,
    paper_step,
    released_step,
)
from clearhead_lab.theorems.theorem import Theorem, relative_residual

__all__ = ["STEP_THEOREMS"]

N, D, K, P = 128, 32, 4, 8
ALL_EPS = (1.0, 0.5, 0.1)
"""a s_max^2 is about 0.4 for the first, and 1.5 to 46 for the others."""
Step = Callable[[Tensor, Tensor, float], Tensor]
Outcome = Callable[[RateChange], Tensor]


@cache
def _tokens(dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return five trials of each kind of tokens, and their subspaces."""
    trials = []
    for distribution in TokenDistribution:
        generator = torch.Generator().manual_seed(0)
        bases = draw_bases(K, D, P, generator=generator)
        trials.append((draw_tokens(distribution, bases, trials=5, n=N, generator=generator).to(dtype), bases.to(dtype)))
    return tuple(trials)


def _changes(dtype: torch.dtype, step: Step, all_eps: tuple[float, ...] = ALL_EPS) -> Iterator[RateChange]:
    for z, bases in _tokens(dtype):
        for eps in all_eps:
            yield rate_change(z, step(z, bases, eps), bases=bases, eps=eps)


def _share(events: list[Tensor]) -> float:
    return float(torch.cat(events).double().mean())


def _failures(dtype: torch.dtype, step: Step, outcome: Outcome, all_eps: tuple[float, ...] = ALL_EPS) -> float:
    """Return the share of trials in which the step does not have the outcome."""
    return _share([~outcome(change) for change in _changes(dtype, step, all_eps)])


def _raw_falls(change: RateChange) -> Tensor:
    return change.raw < 0


def _raw_rises(change: RateChange) -> Tensor:
    return change.raw > 0


def _both_fall(change: RateChange) -> Tensor:
    return (change.raw < 0) & (change.unit_norm < 0)


def _raw_rises_unit_falls(change: RateChange) -> Tensor:
    return (change.raw > 0) & (change.unit_norm < 0)


def _exact(rate: float) -> Step:
    return lambda z, bases, eps: exact_step(z, bases, rate=rate, eps=eps)


def _released(rate: float) -> Step:
    return lambda z, bases, eps: released_step(z, bases, rate=rate, sharpness=1.0)


def _first_order(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return neumann_step(z, bases, rate=0.1, eps=eps)


def _paper(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return paper_step(z, bases, rate=0.1, eps=eps)


def _shrinking(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return 0.9 * z


def _first_order_failures(dtype: torch.dtype, beyond_convergence: Outcome) -> float:
    """Return the larger share of failures: of R^c to fall where the expansion converges, of the outcome elsewhere."""
    converging, diverging = ALL_EPS[:1], ALL_EPS[1:]
    return max(
        _failures(dtype, _first_order, _raw_falls, converging),
        _failures(dtype, _first_order, beyond_convergence, diverging),
    )


def _shrinking_falls_less(dtype: torch.dtype, step: Step) -> float:
    """Return the share of trials in which shrinking does not lower raw R^c by more than the step does."""
    pairs = zip(_changes(dtype, _shrinking), _changes(dtype, step), strict=True)
    return _share([~(shrunk.raw < stepped.raw) for shrunk, stepped in pairs])


def _inner_product_errors(dtype: torch.dtype, *, inverse: bool) -> list[float]:
    """Compare <grad R^c, linear attention> with a sum_k tr(M_k (V_k^T V_k)^2), M_k the inverse or the identity."""
    errors = []
    for z, bases in _tokens(dtype):
        for eps in ALL_EPS:
            v, a = z.unsqueeze(-3) @ bases, P / (N * eps**2)
            gram = v.mT @ v
            square = gram @ gram
            weighted = torch.linalg.solve(torch.eye(P, dtype=dtype) + a * gram, square) if inverse else square
            expected = a * weighted.diagonal(dim1=-2, dim2=-1).sum(dim=(-2, -1))
            assert bool((expected > 0).all()), "a trace of positive definite matrices"
            inner = (subspace_rate_gradient(z, bases, eps=eps) * linear_attention(z, bases)).sum(dim=(-2, -1))
            errors.append(relative_residual(inner, expected))
    return errors


STEP_THEOREMS = (
    Theorem(
        "R10",
        "a step along the exact gradient, kappa = 1 / a, lowers raw R^c in every trial (eps = 1, 0.5, 0.1)",
        lambda dtype: _failures(dtype, _exact(1.0), _raw_falls),
        "the step in the opposite direction",
        lambda dtype: _failures(dtype, _exact(-1.0), _raw_falls),
        f"{CRATE}, section 2.3",
    ),
    Theorem(
        "R11",
        "the first-order step lowers raw R^c if a s_max^2 < 1, and raises it if a s_max^2 is 1.5 to 46",
        lambda dtype: _first_order_failures(dtype, _raw_rises),
        "the claim that it lowers raw R^c in both cases",
        lambda dtype: _first_order_failures(dtype, _raw_falls),
        f"{CRATE}, section 2.3, on the range of its expansion",
    ),
    Theorem(
        "R12",
        "the paper's step, (1 - kappa a) Z + kappa a MSSA(Z), lowers both raw R^c and R^c of unit tokens",
        lambda dtype: _failures(dtype, _paper, _both_fall),
        "the released code's step, Z + SSA(Z)",
        lambda dtype: _failures(dtype, _released(1.0), _both_fall),
        f"{CRATE}, section 2.3",
    ),
    Theorem(
        "R13",
        "shrinking all tokens to 0.9 Z lowers raw R^c by more than the paper's step with kappa = 0.1 / a",
        lambda dtype: _shrinking_falls_less(dtype, _paper),
        "shrinking compared with itself",
        lambda dtype: _shrinking_falls_less(dtype, _shrinking),
        f"cf. {HU}",
    ),
    Theorem(
        "R14",
        "the released code's step, Z + SSA(Z), raises raw R^c and lowers R^c of unit tokens",
        lambda dtype: _failures(dtype, _released(1.0), _raw_rises_unit_falls),
        "the opposite sign, Z - 0.1 SSA(Z)",
        lambda dtype: _failures(dtype, _released(-0.1), _raw_rises_unit_falls),
        f"cf. {HU}, on the sign of MSSA",
    ),
    Theorem(
        "R15",
        "linear attention ascends raw R^c: <grad R^c, A(Z)> = a sum_k tr((I + a V_k^T V_k)^-1 (V_k^T V_k)^2) > 0",
        lambda dtype: max(_inner_product_errors(dtype, inverse=True)),
        "without the inverse",
        lambda dtype: min(_inner_product_errors(dtype, inverse=False)),
        f"cf. {HU}",
    ),
)
