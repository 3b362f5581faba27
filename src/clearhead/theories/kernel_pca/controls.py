"""Controls of kernel PCA: values under which its claims should fail."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import LinearMap
from clearhead.shapes import Float
from clearhead.theories.theory import Control

__all__ = ["OTHER_HEADS", "PERMUTED", "RANDOM_MAP", "RANDOM_VALUES", "Draws", "other_heads", "random_maps"]

RANDOM_VALUES = Control(name="random values")
RANDOM_MAP = Control(name="a random value map", fixed=True)
PERMUTED = Control(name="values of other tokens")
OTHER_HEADS = Control(name="values of other heads", fixed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Largest number of draws of each control on every input."""

    random_values: int = 6
    random_map: int = 8
    permuted: int = 2
    other_heads: int = 7
    fewest_fixed: int = 3
    """A control with fixed draws needs at least this many for its range to mean anything."""


def random_maps(linear: LinearMap, *, draws: int, seed: int, layer: int) -> Float[Tensor, "t h c e"]:
    """Return random value maps with the singular values of the model's own.

    The model's W = U C, U with orthonormal columns, becomes U' C with U' drawn uniformly: the same spectrum and the
    same output directions, reading random directions of the layer's input. Seed and layer determine the maps, so they
    are the same on every input.
    """
    h, c, e = linear.weight.shape
    entropy = np.random.SeedSequence([seed, layer, c, e])
    generator = torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))
    gaussian = torch.randn(draws, h, c, min(c, e), generator=generator, dtype=torch.float64).to(linear.weight.device)
    basis, triangular = torch.linalg.qr(gaussian)
    # Without the signs of R, LAPACK's Q is not uniform (Mezzadri 2007).
    basis = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    maps: Tensor = basis @ torch.linalg.qr(linear.weight.double()).R
    return maps


def other_heads(v: Float[Tensor, "h m e"], *, most: int) -> Float[Tensor, "t h m e"]:
    """Return for every head the values of the heads after it, cyclically."""
    count = min(most, v.shape[0] - 1)
    return torch.stack([v.roll(-j, dims=0) for j in range(1, count + 1)]) if count else v.new_zeros(0, *v.shape)
