"""The subspaces that heads read: orthonormal bases of value maps, and how near the maps are to what theory assumes."""

import math

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import Heads, LinearMap
from clearhead.numerics.moments import Array
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.shapes import Float

__all__ = ["coherence", "is_tied", "not_orthonormal", "orthonormal_bases", "random_bases", "turned_bases", "value_maps"]


def value_maps(heads: Heads) -> Float[Tensor, "k c f"] | None:
    """The value map of every distinct value head, in float64; None where values are no linear map's."""
    made = heads.values_from
    return None if made is None else made.weight[:: heads.groups].detach().cpu().double()


def is_tied(heads: Heads) -> bool:
    """Whether queries, keys and values are one linear map, as in CRATE, up to a constant factor on some."""
    made = (heads.queries_from, heads.keys_from, heads.values_from)
    first = made[-1]
    return first is not None and all(other is not None and _proportional(other, first) for other in made[:-1])


def _proportional(one: LinearMap, other: LinearMap) -> bool:
    if one.weight.shape != other.weight.shape:
        return False
    a, b = (made.weight.double() / torch.linalg.vector_norm(made.weight.double()) for made in (one, other))
    return bool(torch.linalg.vector_norm(a - b) <= tolerance(one.weight.dtype, terms=1))


def orthonormal_bases(maps: Float[Tensor, "k c f"]) -> Float[Tensor, "k c p"]:
    """U_h with the span of each map's columns, p = min(c, f); columns of zeros where the map has less rank than p."""
    basis: Tensor
    basis, triangular = torch.linalg.qr(maps)
    _, c, f = maps.shape
    least = max(c, f) * machine_epsilon(torch.float32)
    left, values, _ = torch.linalg.svd(triangular)
    known = values > least * values[:, :1]
    if bool(known.all()):
        return basis
    turned: Tensor = basis @ left * known.unsqueeze(-2)
    return turned


def random_bases(draws: int, *, c: int, p: int, generator: torch.Generator) -> Float[Tensor, "t c p"]:
    """Orthonormal bases of subspaces drawn uniformly."""
    drawn = torch.randn(draws, c, p, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn).Q
    return basis


def turned_bases(
    bases: Float[Tensor, "k c p"], tokens: Float[Tensor, "n c"], *, draws: int, generator: torch.Generator
) -> Float[Tensor, "t k c p"]:
    """Other bases in which the tokens have the same coding rate: S U with S Z^T Z S = Z^T Z.

    S keeps or flips each principal direction of the tokens Z, and all that is orthogonal to them, by a coin.
    """
    directions = torch.linalg.svd(tokens, full_matrices=False).Vh
    coins = torch.randint(2, (draws, 1, len(directions) + 1, 1), generator=generator).to(bases.dtype) * 2 - 1
    inside = directions @ bases
    outside = bases - directions.mT @ inside
    turned: Tensor = directions.mT @ (coins[:, :, :-1] * inside) + coins[:, :, -1:] * outside
    return turned


def not_orthonormal(maps: Float[Tensor, "*t c f"], *, scaled: bool) -> Array:
    """|W^T W - I| / sqrt(p), of the map as it is or, where `scaled`, of its multiple with |W|^2 = p; NaN for zeros."""
    p = min(maps.shape[-2:])
    size = maps.square().sum(dim=(-2, -1), keepdim=True)
    # W^T W and W W^T have the same eigenvalues but for zeros, and the smaller can be the identity.
    small = maps.mT @ maps if maps.shape[-1] <= maps.shape[-2] else maps @ maps.mT
    small = small * p / size if scaled else small
    apart = torch.linalg.matrix_norm(small - torch.eye(p, dtype=maps.dtype)) / math.sqrt(p)
    found: Array = torch.where(size[..., 0, 0] > 0, apart, torch.nan).numpy()
    return found


def coherence(bases: Float[Tensor, "*t k c p"]) -> tuple[Array, Array]:
    """Of every subspace with the others: mean of |U_h^T U_j|^2 / p, and the largest cosine; NaN where it is alone."""
    *batch, k, c, p = bases.shape
    if k == 1:
        alone = np.full((*batch, 1), np.nan)
        return alone, alone
    flat = bases.movedim(-3, -2).reshape(*batch, c, k * p)
    products = (flat.mT @ flat).reshape(*batch, k, p, k, p).movedim(-2, -3)
    cosines = torch.linalg.matrix_norm(products, ord=2)
    overlaps = products.square().sum(dim=(-2, -1)) / p
    own = torch.eye(k, dtype=torch.bool)
    mean = overlaps.masked_fill(own, 0).sum(dim=-1) / (k - 1)
    return mean.numpy(), cosines.masked_fill(own, 0).amax(dim=-1).numpy()
