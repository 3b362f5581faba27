"""What a theory is to the rest of the house."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from clearhead.findings import Finding, Theorem
from clearhead.heads import Heads
from clearhead.record import Dispute

__all__ = ["Begin", "Measurement", "Theory"]


@runtime_checkable
class Measurement(Protocol):
    """A theory being tested on a stream of calls. It keeps sums over inputs, never the inputs."""

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""


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
    theorems: Callable[[], Sequence[Theorem]]
    dispute: Dispute | None = None
