"""Tolerances by dtype."""

import math

import torch

__all__ = ["difference_step", "machine_epsilon", "tolerance"]


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


def difference_step(dtype: torch.dtype) -> float:
    r"""Return the step at which central differences of a function of size one are most exact.

    .. math:: h = \epsilon^{1/3}

    There the truncation error, of order h squared, equals the rounding error, of order epsilon / h. Both are far below
    h, so h can be the tolerance of such a derivative, for third derivatives up to 1 / h.
    """
    return math.cbrt(machine_epsilon(dtype))
