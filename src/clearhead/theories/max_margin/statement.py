"""A statement of the theory as something that can be checked, with the control that must fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from clearhead.findings import Theorem
from clearhead.numerics.precision import tolerance
from clearhead.numerics.threads import one_thread

__all__ = ["MATRICES", "PAPER", "Measured", "Statement", "checked"]

PAPER = "Tarzanagh et al. 2023 (arXiv 2308.16898)"
MATRICES = "cf. Srebro, Rennie and Jaakkola 2004"

Measured = Callable[[torch.dtype], float]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in words; its residual and its control, each measured on data rounded to a dtype; where it is said.

    Problems are solved in double precision whatever the data, so single precision only rounds the data.
    """

    id: str
    statement: str
    residual: Measured
    control: str
    control_residual: Measured
    citation: str
    tolerance: float = 1e-10


def checked(statements: Sequence[Statement]) -> list[Theorem]:
    """Measure every statement in both precisions, and its control in double."""
    with one_thread():
        return [
            Theorem(
                source="max margin",
                id=s.id,
                statement=s.statement,
                residual=float(s.residual(torch.float64)),
                residual_single=float(s.residual(torch.float32)),
                tolerance=s.tolerance,
                tolerance_single=max(s.tolerance, tolerance(torch.float32)),
                control=s.control,
                control_residual=float(s.control_residual(torch.float64)),
                citation=s.citation,
            )
            for s in statements
        ]
