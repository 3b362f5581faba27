"""A theory of attention: its claims, how they are measured, its theorem checks and what is disputed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from clearhead.errors import InputError
from clearhead.heads import Heads

if TYPE_CHECKING:
    from clearhead.audit.findings import Finding
    from clearhead.audit.record import DepthCurve

__all__ = [
    "AlongDepth", "Begin", "Claim", "Direction", "Dispute", "Measurement", "Position", "Role", "TheoremCheck", "Theory",
    "Unit",
]  # fmt: skip


class Role(StrEnum):
    """What a claim is to its theory."""

    PRIMARY = "primary"
    """The theory stands or falls with it."""
    SECONDARY = "secondary"
    """Another consequence of the theory, or a condition for it."""
    PUBLISHED = "as published"
    """A statistic that a publication rests on, computed as it says; shown so that its worth can be seen."""


class Direction(StrEnum):
    """On which side of chance a value lies, where a theory says no more than that."""

    LOWER = "lower"
    HIGHER = "higher"


class Unit(StrEnum):
    """What one finding of a claim is of."""

    HEAD = "head"
    LAYER = "layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a theory says, as something that can be measured.

    `exact` is the value if the theory were exact; None where that depends on the input, and every finding has its own,
    and where the theory tells no value but only the `direction` in which it lies from chance.
    `note` is what to know before trusting the number. A claim of whole layers has `unit` LAYER, and findings of head 0.
    """

    theory: str
    statistic: str
    statement: str
    formula: str
    citation: str
    exact: float | None
    role: Role = Role.PRIMARY
    note: str = ""
    direction: Direction | None = None
    unit: Unit = Unit.HEAD
    percent: bool = False
    """Whether the statistic is a share of a whole, which people read as a percentage."""

    def __post_init__(self) -> None:
        if self.direction is not None and self.exact is not None:
            raise InputError(f"{self.statistic} has an exact value and a direction; a claim has one of them")

    def hardest(self, controls: Mapping[str, float], exact: float) -> str:
        """Name the control that comes nearest to what the theory says, or the first if nobody knows; "" without."""
        known = {name: value for name, value in controls.items() if math.isfinite(value)}
        if self.direction is not None and known:
            return (min if self.direction is Direction.LOWER else max)(known, key=lambda name: known[name])
        if not known or not math.isfinite(exact):
            return next(iter(known), "")
        return min(known, key=lambda name: abs(exact - known[name]))


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
        """Whether both residuals are within tolerance and the control's is at least 100 times the tolerance."""
        return (
            self.residual <= self.tolerance
            and self.residual_single <= self.tolerance_single
            and self.control_residual > 100 * self.tolerance_single
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What one publication says in a dispute, and the statistics that it rests on."""

    source: str
    says: str
    rests_on: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A theory on which publications disagree. The theory's primary claim decides, on the model at hand."""

    theory: str
    question: str
    positions: tuple[Position, ...]


@runtime_checkable
class Measurement(Protocol):
    """A theory being tested on a stream of calls. It keeps sums over inputs, never the inputs."""

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""

    def findings(self) -> "list[Finding]":
        """What was found on every head seen, without verdicts."""


@runtime_checkable
class AlongDepth(Measurement, Protocol):
    """A measurement that can also draw what it saw layer by layer."""

    def curves(self) -> "list[DepthCurve]":
        """Quantities by layer, each beside its chance."""

    def notes(self) -> list[str]:
        """What to know of the inputs before trusting the numbers."""


@runtime_checkable
class Begin(Protocol):
    """Start a measurement with a seed; without controls where only the values are wanted."""

    def __call__(self, seed: int, *, controls: bool = True) -> Measurement:
        """Begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """A name on the command line, what it says, how to measure it, and the statements behind it that can be proved."""

    name: str
    title: str
    begin: Begin
    theorems: Callable[[], Sequence[TheoremCheck]]
    dispute: Dispute | None = None
    needs_stream: bool = False
    """Whether its claims are on the tokens carried past a block (`Heads.stream`)."""
    needs_untrained: bool = False
    """Whether its claims mean little unless the same model before training is a control, and one to be judged by."""
