"""The subspaces that heads read: orthonormal bases of their value maps, and measures of orthonormality and overlap.

How far the maps are from the theory's assumptions is compared with random maps. Only statistics of a layer are stored,
because the maps of all layers in float64 are larger than the model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import LinearMap
from clearhead.numerics.moments import Array
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.numerics.spectrum import orthonormal_columns
from clearhead.shapes import Float
from clearhead.theories.coding_rate.claims import (
    LARGEST_COSINE,
    ORTHONORMAL,
    OVERLAP,
    RANDOM_MAP,
    UNSCALED_MAP,
)
from clearhead.theories.example import Example, Random
from clearhead.theories.samples import repeat
from clearhead.theories.theory import Claim, Sample


def value_maps(example: Example) -> Float[Tensor, "k c f"] | None:
    """Return the value map of every distinct value head in float64; None if values are not a linear map of tokens."""
    linear = example.values_from
    return None if linear is None else linear.weight[:: example.groups].detach().cpu().double()


def is_tied(example: Example) -> bool:
    """Return whether queries, keys and values share one linear map up to constant factors, as in CRATE."""
    values = example.values_from
    others = (example.queries_from, example.keys_from)
    return values is not None and all(other is not None and _proportional(other, values) for other in others)


def _proportional(first: LinearMap, second: LinearMap) -> bool:
    if first.weight.shape != second.weight.shape:
        return False
    a, b = (linear.weight.double() / torch.linalg.vector_norm(linear.weight.double()) for linear in (first, second))
    return bool(torch.linalg.vector_norm(a - b) <= tolerance(first.weight.dtype, terms=1))


def orthonormal_bases(maps: Float[Tensor, "k c f"]) -> Float[Tensor, "k c p"]:
    """Return U_h, an orthonormal basis of each map's column space, p = min(c, f).

    A map of rank below p has zero columns in its basis.
    """
    basis: Tensor
    basis, triangular = torch.linalg.qr(maps)
    _, c, f = maps.shape
    threshold = max(c, f) * machine_epsilon(torch.float32)
    values = torch.linalg.svdvals(triangular)
    in_span = values > threshold * values[:, :1]
    if bool(in_span.all()):
        return basis
    reduced: Tensor = basis @ torch.linalg.svd(triangular).U * in_span.unsqueeze(-2)
    return reduced


def random_bases(draws: int, *, c: int, p: int, generator: torch.Generator) -> Float[Tensor, "t c p"]:
    """Return orthonormal bases of uniformly distributed subspaces."""
    return orthonormal_columns(torch.randn(draws, c, p, generator=generator, dtype=torch.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflections:
    """Random reflections S under which tokens Z have the same coding rate in S U as in U: S Z^T Z S = Z^T Z.

    directions: principal directions of the tokens
    signs: by draw, -1 for directions that are reflected; the last is that of their orthogonal complement
    """

    directions: Float[Tensor, "r c"]
    signs: Float[Tensor, "t r1"]

    @classmethod
    def of(cls, tokens: Float[Tensor, "n c"], signs: Float[Tensor, "t c1"]) -> "Reflections":
        """Reflect the tokens' principal directions, from the strongest on, by the first signs of each draw."""
        # LAPACK takes half as long for a tall matrix as for a wide one.
        directions = torch.linalg.svd(tokens.mT, full_matrices=False).U.mT
        return cls(directions=directions, signs=torch.cat([signs[:, : len(directions)], signs[:, -1:]], dim=1))

    def project(
        self, tokens: Float[Tensor, "n c"], projected: Float[Tensor, "n kp"], bases: Float[Tensor, "c kp"]
    ) -> Float[Tensor, "t n kp"]:
        """Return Z S U for every draw, up to its sign, from Z U; U are bases of subspaces side by side.

        Up to the sign the complement is not reflected, and S = I - 2 D^T D for the reflected directions D.
        """
        flipped = self.signs[:, :-1] != self.signs[:, -1:]
        # The reflected directions of every draw come first, then others with weight zero, as many as one draw needs.
        index = flipped.byte().argsort(dim=1, descending=True, stable=True)[:, : int(flipped.sum(dim=1).max())]
        weight = flipped.gather(1, index).to(tokens.dtype)
        directions = self.directions.to(tokens.dtype)
        inside, along = directions @ bases, directions @ tokens.mT
        return torch.baddbmm(
            projected.expand(len(index), -1, -1), (along[index] * weight.unsqueeze(-1)).mT, inside[index], alpha=-2
        )


def random_signs(draws: int, count: int, *, generator: torch.Generator) -> Float[Tensor, "t n"]:
    """Return 1 and -1 with equal probability."""
    return torch.randint(2, (draws, count), generator=generator).double() * 2 - 1


def orthonormality_error(maps: Float[Tensor, "*t c f"], *, scaled: bool) -> Array:
    """Return |W^T W - I| / sqrt(p) of each map, `scaled` to |W|^2 = p first or not; NaN for a zero map."""
    p = min(maps.shape[-2:])
    size = maps.square().sum(dim=(-2, -1), keepdim=True)
    # W^T W and W W^T have the same nonzero eigenvalues, and only the smaller can be the identity.
    gram = maps.mT @ maps if maps.shape[-1] <= maps.shape[-2] else maps @ maps.mT
    gram = gram * p / size if scaled else gram
    error = torch.linalg.matrix_norm(gram - torch.eye(p, dtype=maps.dtype)) / math.sqrt(p)
    errors: Array = torch.where(size[..., 0, 0] > 0, error, torch.nan).numpy()
    return errors


def coherence(bases: Float[Tensor, "*t k c p"]) -> tuple[Array, Array]:
    """Return for every subspace h the mean over j of |U_h^T U_j|^2 / p and the largest cosine; NaN if k = 1."""
    *batch, k, c, p = bases.shape
    if k == 1:
        undefined = np.full((*batch, 1), np.nan)
        return undefined, undefined
    flat = bases.movedim(-3, -2).reshape(*batch, c, k * p)
    products = (flat.mT @ flat).reshape(*batch, k, p, k, p).movedim(-2, -3)
    cosines = torch.linalg.matrix_norm(products, ord=2)
    overlaps = products.square().sum(dim=(-2, -1)) / p
    diagonal = torch.eye(k, dtype=torch.bool)
    mean = overlaps.masked_fill(diagonal, 0).sum(dim=-1) / (k - 1)
    return mean.numpy(), cosines.masked_fill(diagonal, 0).amax(dim=-1).numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMaps:
    """Statistics of Gaussian maps of one shape, drawn once and used for every layer of that shape.

    squares: |D^T D|^2 of each map D with |D| = 1
    width: p
    overlap, cosine: see `coherence`
    """

    squares: Array
    width: int
    overlap: Array
    cosine: Array

    @classmethod
    def draw(cls, shape: tuple[int, int, int], *, draws: int, seed: int) -> "RandomMaps":
        """Draw maps of shape (k, c, f) `draws` times, one at a time to save memory."""
        generator = Random(seed, *shape).torch
        squares, coherences = [], []
        for _ in range(draws):
            maps = torch.randn(*shape, generator=generator, dtype=torch.float64)
            gram = maps.mT @ maps if shape[2] <= shape[1] else maps @ maps.mT
            sizes = maps.square().sum(dim=(-2, -1))
            squares.append((gram.square().sum(dim=(-2, -1)) / sizes.square()).numpy())
            coherences.append(coherence(torch.linalg.qr(maps).Q))
        overlap, cosine = (np.stack(column) for column in zip(*coherences, strict=True))
        return cls(squares=np.stack(squares), width=min(shape[1:]), overlap=overlap, cosine=cosine)

    def orthonormality_error(self, size: Array) -> Array:
        """Return `subspaces.orthonormality_error` of the maps scaled to |D|^2 = size.

        |s D^T D - I|^2 = s^2 |D^T D|^2 - 2 s |D|^2 + p.
        """
        error: Array = np.sqrt(np.maximum(size**2 * self.squares - 2 * size + self.width, 0)) / math.sqrt(self.width)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMaps:
    """The claims on the weights of one layer, which are the same on every input.

    tied: whether queries, keys and values share one map
    samples: of every claim on maps that the layer has, by head
    """

    tied: bool
    samples: dict[Claim, Sample]

    @classmethod
    def of(cls, example: Example, weights: Float[Tensor, "k c f"], random: RandomMaps | None) -> "LayerMaps":
        """Measure the maps of every distinct value head, with random maps as the control if given."""
        overlap, cosine = coherence(orthonormal_bases(weights))
        size: Array = weights.square().sum(dim=(-2, -1)).numpy()
        controls: list[Array | None] = [None] * 4
        if random is not None:
            unit = np.full_like(size, random.width)
            controls = [
                random.orthonormality_error(unit),
                random.overlap,
                random.cosine,
                random.orthonormality_error(size),
            ]
        values = (
            orthonormality_error(weights, scaled=True),
            overlap,
            cosine,
            orthonormality_error(weights, scaled=False),
        )
        scaled, mean, nearest, unscaled = (
            Sample(value=value, controls={} if control is None else {RANDOM_MAP: control})
            for value, control in zip(values, controls, strict=True)
        )
        tied = is_tied(example)
        samples = {ORTHONORMAL: scaled, OVERLAP: mean, LARGEST_COSINE: nearest}
        if tied:
            samples[UNSCALED_MAP] = unscaled
        return cls(tied=tied, samples=repeat(samples, example.groups))
