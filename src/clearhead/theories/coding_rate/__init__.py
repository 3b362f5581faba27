"""Attention as compression: the coding rate of tokens, its reduction by classes, and the steps that lower it."""

from clearhead.theories.coding_rate.block import Draws
from clearhead.theories.coding_rate.claims import HEAD_CLAIMS, LAYER_CLAIMS, MAP_CLAIMS, TIED_CLAIMS
from clearhead.theories.coding_rate.measurement import CodingRateClaims
from clearhead.theories.coding_rate.theorems import theorems
from clearhead.theories.theory import Theory

__all__ = [
    "HEAD_CLAIMS",
    "LAYER_CLAIMS",
    "MAP_CLAIMS",
    "THEORY",
    "TIED_CLAIMS",
    "CodingRateClaims",
    "Draws",
    "theorems",
]

THEORY = Theory(
    name="coding-rate",
    title="coding rate",
    begin=CodingRateClaims,
    theorems=theorems,
    needs_stream=True,
    needs_untrained=True,
)
