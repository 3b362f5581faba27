"""Controls of kernel PCA: values, and keys, under which its claims should fail."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import LinearMap
from clearhead.shapes import Float
from clearhead.theories.theory import Control

__all__ = [
    "OTHER_HEADS",
    "OTHER_KEYS",
    "PERMUTED",
    "RANDOM_MAP",
    "RANDOM_VALUES",
    "Draws",
    "RandomMaps",
    "other_heads",
    "with_other_keys",
]

RANDOM_VALUES = Control(name="random values")
RANDOM_MAP = Control(name="a random value map", fixed=True)
PERMUTED = Control(name="values of other tokens")
OTHER_HEADS = Control(name="values of other heads", fixed=True)
OTHER_KEYS = Control(name="keys of other heads", fixed=True)
LEAST_DISTANCE = 1e-9
"""Smallest distance between control and prediction at which a share of it is defined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Largest number of draws of each control on every input.

    Random values and orders of tokens are drawn anew for every input and average out, so that few are enough.
    """

    random_values: int = 2
    random_map: int = 16
    permuted: int = 2
    other_heads: int = 16
    fewest_fixed: int = 3
    """A control with fixed draws needs at least this many for its range to mean anything."""
    fewest_keys: int = 5
    """Keys of other heads differ more than their values: with fewer, heads that follow the theory are not detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMaps:
    """Random value maps with the singular values of the model's own.

    The model's W = U C, U with orthonormal columns, becomes U' C with U' drawn uniformly: the same spectrum and the
    same output directions, reading random directions of the layer's input.

    bases: U' by draw, shared by the heads of the layer; mixes: C by head
    """

    bases: Float[Tensor, "t c r"]
    mixes: Float[Tensor, "h r e"]

    @classmethod
    def draw(cls, linear: LinearMap, *, draws: int, seed: int, layer: int) -> "RandomMaps":
        """Draw the maps. Seed and layer determine them, so they are the same on every input."""
        _, c, e = linear.weight.shape
        entropy = np.random.SeedSequence([seed, layer, c, e])
        generator = torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))
        gaussian = torch.randn(draws, c, min(c, e), generator=generator, dtype=torch.float64).to(linear.weight.device)
        basis, triangular = torch.linalg.qr(gaussian)
        # Without the signs of R, LAPACK's Q is not uniform (Mezzadri 2007).
        basis = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return cls(bases=basis, mixes=torch.linalg.qr(linear.weight.double()).R)

    def values(self, x: Float[Tensor, "m c"], heads: slice) -> Float[Tensor, "t k m e"]:
        """Return the values of an input for these heads, without a bias."""
        return torch.einsum("tmr,hre->thme", x.double() @ self.bases, self.mixes[heads])


def other_heads(v: Float[Tensor, "h m e"], *, most: int) -> Float[Tensor, "t h m e"]:
    """Return for every head the values of the heads after it, cyclically."""
    count = min(most, v.shape[0] - 1)
    return torch.stack([v.roll(-j, dims=0) for j in range(1, count + 1)]) if count else v.new_zeros(0, *v.shape)


def with_other_keys(of_others: Float[Tensor, "t h"], predicted: float) -> Float[Tensor, "t h"]:
    """Return a statistic of every head's values with the keys of other heads, on the scale of its own keys.

    of_others: of the values that `other_heads` returns, so that no further statistic is computed

    Keys whose spectrum is flat give every value a higher number than others. So the number with other keys is expressed
    as a share of the way from the remaining heads' values to the prediction, both with these keys, and applied to the
    way from other heads' values to the prediction with the head's own keys. NaN where the way has no length.
    """
    known = of_others.isfinite()
    total, count = torch.where(known, of_others, 0).sum(dim=0), known.sum(dim=0)
    remaining = (total - of_others) / (count - 1)
    share = (of_others - remaining) / _distance(remaining, predicted)
    shifted = torch.stack([of_draw.roll(j, dims=0) for j, of_draw in enumerate(share, start=1)])
    level = total / count
    return level + _distance(level, predicted) * shifted


def _distance(level: Tensor, predicted: float) -> Tensor:
    distance = predicted - level
    return torch.where(distance.abs() > LEAST_DISTANCE, distance, torch.nan)
