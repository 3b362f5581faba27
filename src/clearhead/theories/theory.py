"""What a theory is to the rest of the house."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from clearhead.findings import Finding, Theorem
from clearhead.heads import Heads

__all__ = ["Measurement", "Theory"]


@runtime_checkable
class Measurement(Protocol):
    """A theory being tested on a stream of calls. It keeps sums over inputs, never the inputs."""

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """A name on the command line, what it says, how to measure it, and the statements behind it that can be proved."""

    name: str
    title: str
    begin: Callable[[int], Measurement]
    """Start a measurement with a seed."""
    theorems: Callable[[], Sequence[Theorem]]
