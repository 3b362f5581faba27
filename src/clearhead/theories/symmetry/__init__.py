"""Symmetries of attention (Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*).

Their theorem 1: self-attention is equivariant to permutations of its tokens, attention with a learned query invariant.
Masks and biases that depend on positions break it. `equivariance` and `invariance` measure by how much, for any
operator.
"""

from clearhead.theories.symmetry.claim import CLAIM, PermutationSymmetry, obstacle
from clearhead.theories.symmetry.groups import (
    GRID,
    TOKENS,
    Element,
    bounded_translations,
    dihedral,
    flips,
    permutations,
    random_permutations,
    rotations,
    translations,
    transpositions,
)
from clearhead.theories.symmetry.measure import (
    Action,
    SymmetryReport,
    equivariance,
    invariance,
    relative_error,
)
from clearhead.theories.symmetry.whole_model import permutation_errors
from clearhead.theories.theory import PlainWords, Position, Theory

__all__ = [
    "CLAIM",
    "GRID",
    "THEORY",
    "TOKENS",
    "Action",
    "Element",
    "SymmetryReport",
    "bounded_translations",
    "dihedral",
    "equivariance",
    "flips",
    "invariance",
    "make_theory",
    "permutations",
    "random_permutations",
    "relative_error",
    "rotations",
    "translations",
    "transpositions",
]

WORDS = PlainWords(
    says="Attention has no sense of order: if the tokens are shuffled, the outputs are the same, shuffled likewise.",
    supported="The order of the tokens does not matter to these heads.",
    no_evidence="The outputs depend on the order of the tokens as much as they would in an unrelated order.",
    contradicted="The outputs depend on the order of the tokens.",
    not_applicable="A mask that hides later tokens, as in a causal model, breaks the symmetry by design: order matters "
    "in these heads.",
    true_by_construction="Without a mask this is a theorem, so there is nothing to test. The model knows the order of "
    "its tokens only from its position codes.",
)

POSITIONS = (
    Position(
        source="Ji and Xie, A Mathematical View of Attention Models in Deep Learning",
        says="Self-attention is equivariant to permutations of its tokens (theorem 1). Masks and biases that depend on "
        "positions break the symmetry.",
        rests_on=(CLAIM.statistic,),
    ),
)


def make_theory(*, draws: int = 3) -> Theory:
    """Return the theory with this number of permutations for each example."""
    return Theory(
        key="symmetry",
        title="symmetry",
        claims=(CLAIM,),
        measure=PermutationSymmetry(draws).measure,
        applies=obstacle,
        on_model=permutation_errors,
        positions=POSITIONS,
        words=WORDS,
    )


THEORY = make_theory()
