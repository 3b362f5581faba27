r"""Measures of how sparse tokens are: the share of exact zeros, and a density that also grades small entries."""

import math

import torch
from torch import Tensor

from clearhead.shapes import Float

__all__ = ["density", "gaussian_density", "nonzero_fraction"]


def gaussian_density(c: int) -> float:
    r"""Return the expected density of c independent Gaussian features, :math:`(1 + (c - 1)\, 2/\pi) / c`.

    (|z|_1 / |z|_2)^2 is independent of |z|_2, so its mean is the mean of |z|_1^2 over the mean of |z|_2^2.
    """
    return (1 + (c - 1) * 2 / math.pi) / c


def density(z: Float[Tensor, "n c"]) -> float:
    r"""Return the mean over tokens of :math:`(\|z\|_1 / \|z\|_2)^2 / c`.

    It is 1/c for one-hot features and 1 for features of equal magnitude. Zero tokens are left out; NaN if all are zero.
    """
    z = z.double()
    squares = z.square().sum(dim=-1)
    nonzero = squares > 0
    if not bool(nonzero.any()):
        return math.nan
    return float((z.abs().sum(dim=-1)[nonzero].square() / squares[nonzero]).mean() / z.shape[-1])


def nonzero_fraction(z: Float[Tensor, "n c"]) -> float:
    """Return the share of entries that are not exactly zero."""
    return float(torch.count_nonzero(z)) / z.numel()
