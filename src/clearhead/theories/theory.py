"""What a theory is to the rest of the house."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from clearhead.findings import Finding, TheoremCheck
from clearhead.heads import Heads
from clearhead.record import DepthCurve, Dispute

__all__ = ["AlongDepth", "Begin", "Measurement", "Theory"]


@runtime_checkable
class Measurement(Protocol):
    """A theory being tested on a stream of calls. It keeps sums over inputs, never the inputs."""

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""


@runtime_checkable
class AlongDepth(Measurement, Protocol):
    """A measurement that can also draw what it saw layer by layer."""

    def curves(self) -> list[DepthCurve]:
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
