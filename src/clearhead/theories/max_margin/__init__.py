"""Attention as a support vector machine that selects tokens (Tarzanagh et al. 2023, arXiv 2308.16898, 2306.13596).

Gradient descent converges in direction to the matrix of least norm that selects some tokens with a margin: the
Frobenius norm if W itself is trained, the nuclear norm if its factors are. `attention_svm` solves for this matrix.
"""

import functools

from clearhead.theories.max_margin.claims import CLAIMS, COSINE, COSINE_NUCLEAR, HEAD_SPACE_CLAIMS
from clearhead.theories.max_margin.groups import Groups
from clearhead.theories.max_margin.on_heads.choices import Sampling, obstacle
from clearhead.theories.max_margin.on_heads.measurement import MaxMarginOnHeads, margins
from clearhead.theories.max_margin.svm.solution import Conflict, MarginWarning, MaxMargin, Norm, Status
from clearhead.theories.max_margin.svm.solving import attention_svm
from clearhead.theories.theory import Need, PlainWords, Position, Theory, Windows

__all__ = [
    "CLAIMS",
    "THEORY",
    "Conflict",
    "MarginWarning",
    "MaxMargin",
    "Norm",
    "Sampling",
    "Status",
    "attention_svm",
    "make_theory",
]

WORDS = PlainWords(
    says="Training should make attention a support vector machine: a head separates the token that it selects from all "
    "others by the largest possible margin.",
    supported="These heads select tokens as a classifier of largest margin would.",
    no_evidence="The margins are no larger than those of comparable random heads. The theory's account of what "
    "training leads to does not show in this model.",
    contradicted="The margins are smaller than those of comparable random heads.",
    not_applicable="The theory covers heads that give one token nearly all attention. These heads spread theirs over "
    "several tokens, so it says nothing about them.",
)

POSITIONS = (
    Position(
        source="Tarzanagh et al. 2023 (arXiv 2308.16898, 2306.13596)",
        says="Yes, for one attention layer with a fixed head. Gradient descent on W converges in direction to the "
        "attention SVM of least Frobenius norm, descent on its factors to that of least nuclear norm. In the authors' "
        "notebooks the cosine to the SVM rises to 0.993, read from the figures.",
        rests_on=(COSINE.statistic, COSINE_NUCLEAR.statistic),
    ),
)


def make_theory(*, sampling: Sampling | None = None, everywhere: bool = False) -> Theory:
    """Return the theory with this sampling; `everywhere` solves in every norm for heads that are not saturated too."""
    measured = MaxMarginOnHeads(sampling=sampling or Sampling(), everywhere=everywhere)
    return Theory(
        key="max-margin",
        title="max margin",
        claims=(*CLAIMS, *HEAD_SPACE_CLAIMS.values()),
        measure=measured.measure,
        applies=obstacle,
        claims_of=measured.claims_of,
        windows=Windows.ONE,
        accumulator=functools.partial(Groups, measured),
        needs=frozenset({Need.WEIGHTS}),
        words=WORDS,
        positions=POSITIONS,
        picture=margins,
    )


THEORY = make_theory()
