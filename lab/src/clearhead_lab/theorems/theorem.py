"""Theorems that are checked numerically, each with a control that must fail."""

import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.numerics.threads import one_thread

Residual = Callable[[torch.dtype], float]
"""Measures a residual on data rounded to the dtype."""


@dataclass(frozen=True, slots=True)
class Theorem:
    """A proved statement, the residual that vanishes if it holds, and a control whose residual must not vanish.

    tolerance: largest residual allowed in float64; in float32 at least that of a sum of products is allowed
    requires: name of an optional package without which the theorem cannot be checked
    """

    id: str
    statement: str
    residual: Residual
    control: str
    control_residual: Residual
    citation: str
    tolerance: float = 1e-12
    requires: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoremCheck:
    """A proved statement verified numerically: its residuals, their tolerances, and a control that must exceed them.

    id: short name by which documents cite the statement
    residual, residual_single: measured in float64 and in float32; NaN if the check needs a package that is missing
    missing: the package to install; "" if none is missing
    """

    source: str
    id: str = ""
    statement: str
    residual: float
    residual_single: float
    tolerance: float
    tolerance_single: float
    control: str
    control_residual: float
    citation: str
    missing: str = ""

    @property
    def holds(self) -> bool:
        """True if both residuals are within tolerance and the control's is at least 100 times the tolerance."""
        return (
            self.residual <= self.tolerance
            and self.residual_single <= self.tolerance_single
            and self.control_residual > 100 * self.tolerance_single
        )


def check_theorems(theorems: Sequence[Theorem], *, source: str) -> list[TheoremCheck]:
    """Measure the residual of every theorem in float64 and float32, and its control's in float64."""
    with one_thread():
        return [_check(theorem, source) for theorem in theorems]


def _check(theorem: Theorem, source: str) -> TheoremCheck:
    missing = "" if not theorem.requires or _is_installed(theorem.requires) else theorem.requires

    def measure(residual: Residual, dtype: torch.dtype) -> float:
        return math.nan if missing else float(residual(dtype))

    return TheoremCheck(
        source=source,
        id=theorem.id,
        statement=theorem.statement,
        residual=measure(theorem.residual, torch.float64),
        residual_single=measure(theorem.residual, torch.float32),
        tolerance=theorem.tolerance,
        tolerance_single=max(theorem.tolerance, tolerance(torch.float32)),
        control=theorem.control,
        control_residual=measure(theorem.control_residual, torch.float64),
        citation=theorem.citation,
        missing=missing,
    )


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def normal_tensor(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers, the same for every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def relative_residual(actual: Tensor, expected: Tensor) -> float:
    r"""Return ``|actual - expected| / |expected|`` in the Frobenius norm, computed in float64; 0 if both are equal."""
    expected = expected.detach().double()
    difference = (actual.detach().double() - expected).norm()
    return float(difference / expected.norm()) if difference > 0 else 0.0
