"""A statement of the source as something that can be checked, with the control that must fail."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.findings import Theorem
from clearhead.numerics.precision import tolerance
from clearhead.numerics.threads import one_thread
from clearhead.theories.symmetry.measure import relative_error

__all__ = ["SLIDES", "WANG", "Measured", "Statement", "apart", "checked", "drawn", "shape_error"]

SLIDES = "Ji and Xie"
WANG = "Wang et al. 2018 (arXiv 1711.07971), section 3.2"

Measured = Callable[[torch.dtype], float]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in words; its residual and its control, each measured in a dtype; where it is said."""

    id: str
    statement: str
    residual: Measured
    control: str
    control_residual: Measured
    citation: str


def checked(statements: Sequence[Statement]) -> list[Theorem]:
    """Measure every statement in both precisions, and its control in double."""
    with one_thread():
        return [
            Theorem(
                source="general attention",
                id=s.id,
                statement=s.statement,
                residual=s.residual(torch.float64),
                residual_single=s.residual(torch.float32),
                tolerance=1e-12,
                tolerance_single=tolerance(torch.float32),
                control=s.control,
                control_residual=s.control_residual(torch.float64),
                citation=s.citation,
            )
            for s in statements
        ]


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers, the same in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def apart(found: Tensor, expected: Tensor) -> float:
    """The relative error of one tensor."""
    return float(relative_error(found, expected))


def shape_error(found: Tensor, expected: tuple[int, ...]) -> float:
    """How far a shape is from the expected one: the differences of the sizes, relative to these, summed."""
    if found.ndim != len(expected):
        return math.inf
    return sum(abs(size - right) / right for size, right in zip(found.shape, expected, strict=True))
