"""Attention as compression: the coding rate of tokens, its reduction by classes, and the steps that lower it."""

from clearhead.theories.coding_rate.claims import (
    DEPTH_CLAIMS,
    HEAD_CLAIMS,
    LAYER_CLAIMS,
    MAP_CLAIMS,
    NORM_CLAIMS,
    TIED_CLAIMS,
)
from clearhead.theories.coding_rate.head_samples import Draws
from clearhead.theories.coding_rate.measurement import CodingRate
from clearhead.theories.theory import Need, PlainWords, Theory, Windows

__all__ = [
    "HEAD_CLAIMS",
    "LAYER_CLAIMS",
    "MAP_CLAIMS",
    "NORM_CLAIMS",
    "THEORY",
    "TIED_CLAIMS",
    "Draws",
    "make_theory",
]

WORDS = PlainWords(
    says="Attention should compress: after a layer, fewer bits describe the tokens in the subspace of each head.",
    supported="Attention compresses the tokens in these heads, more than in the same model before training.",
    no_evidence="Attention does not compress the tokens more than every control does, such as uniform attention or the "
    "untrained model. Do not read these layers as compression steps.",
    contradicted="Attention spreads the tokens out in these heads instead of compressing them.",
    not_applicable="The residual stream or the value map of these heads was not found, so no rate could be measured.",
)


def make_theory(*, eps: float = 0.5, draws: Draws | None = None) -> Theory:
    """Return the theory with this epsilon and these draws of controls."""
    measured = CodingRate(eps=eps, draws=draws or Draws())
    return Theory(
        key="coding-rate",
        title="coding rate",
        claims=(*HEAD_CLAIMS, *NORM_CLAIMS, *LAYER_CLAIMS, *MAP_CLAIMS, *TIED_CLAIMS, *DEPTH_CLAIMS),
        measure=measured.measure,
        claims_of=measured.claims_of,
        windows=Windows.WHOLE,
        needs=frozenset({Need.RESIDUAL_STREAM, Need.WEIGHTS, Need.BASELINE}),
        words=WORDS,
    )


THEORY = make_theory()
