"""Tokens and subspaces drawn from a seed, for statements that hold for all of them or for almost all."""

from enum import StrEnum

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float

__all__ = ["Kind", "draw_bases", "draw_tokens"]


class Kind(StrEnum):
    """How tokens are drawn; all have length one."""

    ISOTROPIC = "isotropic"
    """In a random direction."""
    IN_SUBSPACES = "in subspaces"
    """Each in one of the subspaces, with noise of a given size in every coordinate beside coordinates of size one."""


def draw_bases(k: int, d: int, p: int, *, generator: torch.Generator) -> Float[Tensor, "k d p"]:
    """Orthonormal bases of k subspaces of p dimensions that are orthogonal to each other: k p <= d."""
    if k * p > d:
        raise InputError(f"expected k p <= d, for subspaces that are orthogonal to each other; got {k}, {p} and {d}")
    whole: Tensor = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0][:, : k * p]
    return whole.reshape(d, k, p).movedim(1, 0).contiguous()


def draw_tokens(
    kind: Kind, bases: Float[Tensor, "k d p"], *, trials: int, n: int, noise: float = 0.3, generator: torch.Generator
) -> Float[Tensor, "b n d"]:
    """Tokens of length one for every trial."""
    k, d, p = bases.shape
    z = torch.randn(trials, n, d, generator=generator, dtype=torch.float64)
    if kind is Kind.IN_SUBSPACES:
        own = torch.randint(k, (trials, n), generator=generator)
        inner = torch.randn(trials, n, p, 1, generator=generator, dtype=torch.float64)
        z = (bases[own] @ inner).squeeze(-1) + noise * z
    return torch.nn.functional.normalize(z, dim=-1)
