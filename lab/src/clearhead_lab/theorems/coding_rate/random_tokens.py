"""Random tokens and subspaces for statements that hold for all or almost all of them."""

from enum import StrEnum

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float

__all__ = ["TokenDistribution", "draw_bases", "draw_tokens"]


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
