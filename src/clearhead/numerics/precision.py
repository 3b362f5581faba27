"""How exact a result can be, by dtype: the one place where tolerances come from."""

import math

import torch

__all__ = ["difference_step", "machine_epsilon", "tolerance"]


def machine_epsilon(dtype: torch.dtype) -> float:
    """The spacing of floating numbers at 1."""
    return torch.finfo(dtype).eps


def tolerance(dtype: torch.dtype, *, terms: int = 64) -> float:
    r"""The relative error that two right ways of computing one sum of products may differ by.

    .. math:: \tau = 8 \,\epsilon\, \sqrt{\text{terms}}

    Rounding errors of a sum of `terms` numbers grow like a random walk, hence the root; 8 leaves room for the few
    roundings on either side of the sum. The default is a head of width 64.
    """
    return 8 * machine_epsilon(dtype) * math.sqrt(terms)


def difference_step(dtype: torch.dtype) -> float:
    r"""The step at which central differences of a function of size one are most exact.

    .. math:: h = \epsilon^{1/3}

    There truncation, of order h squared, and rounding, of order epsilon / h, are equal. Both are far below h itself,
    which therefore serves as the tolerance of a derivative so computed, with room for third derivatives up to 1 / h.
    """
    return math.cbrt(machine_epsilon(dtype))
