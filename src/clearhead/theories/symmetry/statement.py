"""Where the statements of the source stand, and how far a tensor or a shape is from what it should be."""

import math

from torch import Tensor

from clearhead.theories.symmetry.measure import relative_error

__all__ = ["SLIDES", "WANG", "apart", "shape_error"]

SLIDES = "Ji and Xie"
WANG = "Wang et al. 2018 (arXiv 1711.07971), section 3.2"


def apart(found: Tensor, expected: Tensor) -> float:
    """The relative error of one tensor."""
    return float(relative_error(found, expected))


def shape_error(found: Tensor, expected: tuple[int, ...]) -> float:
    """How far a shape is from the expected one: the differences of the sizes, relative to these, summed."""
    if found.ndim != len(expected):
        return math.inf
    return sum(abs(size - right) / right for size, right in zip(found.shape, expected, strict=True))
