"""A statement of a theory as something that can be checked, with the control that must fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.findings import Theorem
from clearhead.numerics.precision import tolerance
from clearhead.numerics.threads import one_thread

__all__ = ["Measured", "Statement", "checked", "drawn"]

Measured = Callable[[torch.dtype], float]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in words; its residual and its control, each measured on data rounded to a dtype; where it is said.

    tolerance: what the residual may be; in single precision it is that of a sum of products if that is more
    """

    id: str
    statement: str
    residual: Measured
    control: str
    control_residual: Measured
    citation: str
    tolerance: float = 1e-12


def checked(statements: Sequence[Statement], *, source: str) -> list[Theorem]:
    """Measure every statement in both precisions, and its control in double."""
    with one_thread():
        return [
            Theorem(
                source=source,
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


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers, the same in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
