"""Tolerances by dtype."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

RESOLVED = 4
"""Smallest difference that counts, in units in the last place of the numbers' inputs: see `resolution`."""


def machine_epsilon(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next larger number of the dtype."""
    return torch.finfo(dtype).eps


def tolerance(dtype: torch.dtype, *, terms: int = 64) -> float:
    r"""Return the relative difference to allow between two ways of computing a sum of products.

    .. math:: \tau = 8 \,\epsilon\, \sqrt{\text{terms}}

    Rounding errors of a sum of `terms` numbers grow like a random walk, hence the square root. The factor 8 covers
    a few more rounding steps before and after the sum. The default is for a head of width 64.
    """
    return 8 * machine_epsilon(dtype) * math.sqrt(terms)


def resolution(dtype: torch.dtype, size: NDArray[np.float64] | float) -> NDArray[np.float64]:
    r"""Return the smallest difference that arithmetic resolves between two numbers computed from tensors of the dtype.

    .. math:: \rho = 4 \,\epsilon\, \text{size}

    size: the largest magnitude of the numbers, or of what they are differences of

    Processors round differently, in the last place of every entry of the tensors. That moves a number by at most half
    of it: statistics average over many entries, which are rounded independently. No tensor is so exact that the
    rounding of a sum of 4,096 terms in double precision does not count.
    """
    relative = max(RESOLVED * machine_epsilon(dtype), tolerance(torch.float64, terms=2**12))
    return np.asarray(relative * np.asarray(size, dtype=np.float64))


def difference_step(dtype: torch.dtype) -> float:
    r"""Return the step at which central differences of a function of size one are most exact.

    .. math:: h = \epsilon^{1/3}

    There the truncation error, of order h squared, equals the rounding error, of order epsilon / h. Both are far below
    h, so h can be the tolerance of such a derivative, for third derivatives up to 1 / h.
    """
    return math.cbrt(machine_epsilon(dtype))
