"""The value maps of a layer: how far they are from the theory's assumptions, compared with random maps.

Only statistics of a layer are stored, because the maps of all layers in float64 are larger than the model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.coding_rate.claims import (
    LARGEST_COSINE,
    ORTHONORMAL,
    OVERLAP,
    RANDOM_MAP,
    UNSCALED_MAP,
)
from clearhead.theories.coding_rate.subspaces import coherence, is_tied, orthonormal_bases, orthonormality_error
from clearhead.theories.example import Example, Random
from clearhead.theories.samples import repeat
from clearhead.theories.theory import Claim, Sample


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
