r"""One step of CRATE's attention in its published forms (Yu et al. 2023, arXiv 2306.01129, section 2.3).

Tokens Z in R^{n x d} are rows, subspaces U_k in R^{d x p}, V_k = Z U_k, a = p / (n eps^2). The gradient of R^c(Z | U)
is the sum of a V_k (I + a V_k^T V_k)^-1 U_k^T. The paper expands the inverse to first order, replaces V_k V_k^T by a
softmax, and takes the sum of U_k U_k^T to be the identity. The code released with it also leaves out the factor that
shrinks Z. kappa is the step size.

The theorems say when a step lowers R^c. Their residual is the share of random trials in which it does not. "Raw" is
R^c of the tokens as they are; "unit" is R^c after every token is divided by its length.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import coding_rate, subspace_rate_gradient
from clearhead.shapes import Float
from clearhead_lab.theorems.coding_rate.change import RateChange, rate_change
from clearhead_lab.theorems.coding_rate.rate import CRATE, HU
from clearhead_lab.theorems.theorem import Theorem, relative_residual


class TokenDistribution(StrEnum):
    """The distribution of random tokens of length one."""

    ISOTROPIC = "isotropic"
    """Uniform directions."""
    IN_SUBSPACES = "in subspaces"
    """Each token in one of the subspaces, with normal coordinates there, plus noise in every coordinate."""


def draw_bases(k: int, d: int, p: int, *, generator: torch.Generator) -> Float[Tensor, "k d p"]:
    """Return orthonormal bases of k mutually orthogonal subspaces of dimension p; requires k p <= d."""
    if k * p > d:
        raise InputError(
            f"expected k p <= d, so that {k} subspaces can be orthogonal to each other; got k = {k}, p = {p}, d = {d}"
        )
    basis: Tensor = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0][:, : k * p]
    return basis.reshape(d, k, p).movedim(1, 0).contiguous()


def draw_tokens(
    distribution: TokenDistribution,
    bases: Float[Tensor, "k d p"],
    *,
    trials: int,
    n: int,
    noise: float = 0.3,
    generator: torch.Generator,
) -> Float[Tensor, "b n d"]:
    """Return n tokens of length one for every trial; `noise` is the standard deviation outside the subspaces."""
    k, d, p = bases.shape
    z = torch.randn(trials, n, d, generator=generator, dtype=torch.float64)
    if distribution is TokenDistribution.IN_SUBSPACES:
        subspace = torch.randint(k, (trials, n), generator=generator)
        coordinates = torch.randn(trials, n, p, 1, generator=generator, dtype=torch.float64)
        z = (bases[subspace] @ coordinates).squeeze(-1) + noise * z
    return torch.nn.functional.normalize(z, dim=-1)


HOOK_EPS = 0.1
"""eps of the measuring hook in the released code, where eps^2 = 0.01."""


def subspace_attention(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, sharpness: float = 1.0
) -> Float[Tensor, "*b n d"]:
    """Return sum_k softmax(sharpness V_k V_k^T) V_k U_k^T, the softmax over each row."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = (sharpness * v @ v.mT).softmax(dim=-1) @ v @ bases.mT
    return attended.sum(dim=-3)


def linear_attention(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b n d"]:
    """Return subspace attention without the softmax, sum_k V_k V_k^T V_k U_k^T."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = v @ (v.mT @ v) @ bases.mT
    return attended.sum(dim=-3)


def exact_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return Z - kappa grad R^c(Z | U) with kappa = rate / a."""
    return z - rate / _a(z, bases, eps) * subspace_rate_gradient(z, bases, eps=eps)


def neumann_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return Z - kappa (a Z P - a^2 linear attention), P = sum_k U_k U_k^T, kappa = rate / a.

    This is the step along the gradient to first order in a V_k^T V_k. It approximates the gradient only where the
    expansion converges, that is where `expansion_ratio` is below one.
    """
    projected: Tensor = (z.unsqueeze(-3) @ bases @ bases.mT).sum(dim=-3)
    return z - rate * projected + rate * _a(z, bases, eps) * linear_attention(z, bases)


def paper_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return the paper's step (1 - kappa a) Z + kappa a MSSA(Z), MSSA = a subspace attention, kappa = rate / a."""
    return (1 - rate) * z + rate * _a(z, bases, eps) * subspace_attention(z, bases)


def released_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, sharpness: float
) -> Float[Tensor, "*b n d"]:
    """Return Z + rate SSA(Z), SSA subspace attention: the released code's step, with its output map tied to U."""
    return z + rate * subspace_attention(z, bases, sharpness=sharpness)


def expansion_ratio(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, eps: float) -> Float[Tensor, "*b"]:
    """Return a s_max^2, s_max the largest singular value of any V_k; below one the paper's expansion converges."""
    largest: Tensor = torch.linalg.matrix_norm(z.unsqueeze(-3) @ bases, 2).amax(dim=-1)
    return _a(z, bases, eps) * largest.square()


def hook_rate(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b"]:
    """Return what the released code measures and calls R^c.

    Tokens go through a layer norm without parameters and are projected, each projection is scaled to length one, and
    eps^2 = 0.01. The result depends neither on the size of the tokens nor on how it is divided among the heads.
    """
    normed = layer_norm(z, z.shape[-1:], eps=torch.finfo(z.dtype).tiny)
    return coding_rate(normalize(normed.unsqueeze(-3) @ bases, dim=-1), eps=HOOK_EPS).sum(dim=-1)


def _a(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return a = p / (n eps^2)."""
    return bases.shape[-1] / (z.shape[-2] * eps**2)


N, D, K, P = 128, 32, 4, 8
ALL_EPS = (1.0, 0.5, 0.1)
"""a s_max^2 is about 0.4 for the first, and 1.5 to 46 for the others; s_max is as in `expansion_ratio`."""
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
