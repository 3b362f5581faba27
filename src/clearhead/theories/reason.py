"""Reasons why a claim was not measured or not judged."""

from dataclasses import dataclass
from enum import StrEnum


class ReasonKind(StrEnum):
    """The kind of a reason: what a caller could do about it."""

    TOO_SHORT = "too short"
    """The input has too few tokens."""
    TOO_FEW_INPUTS = "too few inputs"
    NOT_COVERED = "not covered"
    """The theory says nothing about such a layer or head."""
    NOT_FOUND = "not found"
    """The capture did not provide a tensor that the theory needs."""
    NOT_FINITE = "not finite"
    NO_BASELINE = "no baseline"
    """The theory is judged by the model before training, of which there are not several draws."""
    NO_CONTROL = "no control"
    NO_PREDICTION = "no prediction"
    """The predicted value could not be computed."""
    SAMPLED = "sampled"
    """The input was measured on some of its tokens."""
    UNDEFINED = "undefined"
    """The statistic has no value, as in a division by zero."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a claim was not measured on an example, or not judged in a head: its kind, and a text."""

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text
