"""Attention as compression: the coding rate of tokens, its reduction by classes, and the steps that lower it."""

from clearhead.theories.coding_rate.claims import (
    COMPRESSION,
    DEPTH_CLAIMS,
    HEAD_CLAIMS,
    LAYER_CLAIMS,
    MAP_CLAIMS,
    NONZERO,
    NORM_CLAIMS,
    RAW,
    TIED_CLAIMS,
)
from clearhead.theories.coding_rate.head_samples import Draws
from clearhead.theories.coding_rate.measurement import CodingRate
from clearhead.theories.theory import Need, PlainWords, Position, Theory, Windows

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

POSITIONS = (
    Position(
        source="Yu et al. 2023 (arXiv 2306.01129)",
        says="Attention is one gradient step that lowers the coding rate of the tokens in the subspaces of the heads, "
        "and the MLP after it a step towards sparse tokens.",
        rests_on=(RAW.statistic, NONZERO.statistic),
    ),
    Position(
        source="Hu, Zou and Xu 2024 (arXiv 2411.17182)",
        says="The step as it is built, a sum of the tokens and attention, may raise the coding rate. On CIFAR the "
        "sparse rate reduction falls over the first nine layers before training already, and rises with training at "
        "nearly every layer.",
        rests_on=(COMPRESSION.statistic, RAW.statistic),
    ),
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
        positions=POSITIONS,
    )


THEORY = make_theory()
