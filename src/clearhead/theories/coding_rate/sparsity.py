r"""How sparse tokens are: exact zeros where a model has them, and a measure that knows degrees where it has none."""

import math

import torch
from torch import Tensor

from clearhead.shapes import Float

__all__ = ["density", "gaussian_density", "nonzero_fraction"]


def gaussian_density(c: int) -> float:
    r"""The density of c independent Gaussian features: :math:`(1 + (c - 1)\, 2/\pi) / c`.

    (|z|_1 / |z|_2)^2 does not depend on the length of z, so its mean is that of |z|_1^2 over that of |z|_2^2.
    """
    return (1 + (c - 1) * 2 / math.pi) / c


def density(z: Float[Tensor, "n c"]) -> float:
    r"""Mean over tokens of (|z|_1 / |z|_2)^2 / c, from 1/c for one-hot features to 1 for equal magnitudes.

    Tokens of zeros have none and are left out; NaN if there are no others.
    """
    wide = z.double()
    squares = wide.square().sum(dim=-1)
    known = squares > 0
    if not bool(known.any()):
        return math.nan
    return float((wide.abs().sum(dim=-1)[known].square() / squares[known]).mean() / z.shape[-1])


def nonzero_fraction(z: Float[Tensor, "n c"]) -> float:
    """The share of entries that are not exactly zero."""
    return float(torch.count_nonzero(z)) / z.numel()
