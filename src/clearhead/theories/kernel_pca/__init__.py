"""Attention as kernel principal component analysis (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762).

Their theorem 1: softmax attention projects its queries on the principal axes of its keys in a feature space, if the
values hold the eigenvectors of the keys' centred Gram matrix. A reproduction finds no such values in trained models
(Saritas and Yildiz 2025, arXiv 2505.07908).
"""

from collections.abc import Sequence

from clearhead.theories.kernel_pca.claims import CAPTURED, CLAIMS
from clearhead.theories.kernel_pca.controls import Draws
from clearhead.theories.kernel_pca.dispute import POSITIONS, QUESTION
from clearhead.theories.kernel_pca.kernels import KERNEL
from clearhead.theories.kernel_pca.measurement import KernelPCA, spectrum
from clearhead.theories.kernel_pca.spans import captured_variance
from clearhead.theories.theory import Claim, Need, PlainWords, Theory

__all__ = ["CAPTURED", "CLAIMS", "POSITIONS", "QUESTION", "THEORY", "Draws", "captured_variance", "make_theory"]

WORDS = PlainWords(
    says="Attention should work like principal component analysis: the values of a head pick out the directions along "
    "which its keys vary most.",
    supported="The outputs of these heads can be read as coordinates along the main directions of their keys.",
    no_evidence="The values fit the main directions of the keys no better than random ones do. Do not explain the "
    "outputs of this model as principal components.",
    contradicted="The values fit the main directions of the keys less well than random values do.",
    not_applicable="The scores of these heads are not a kernel of their keys alone, so the theory makes no statement.",
)


def make_theory(*, claims: Sequence[Claim] = CLAIMS, draws: Draws | None = None) -> Theory:
    """Return the theory with these claims on values and these draws of controls."""
    measured = KernelPCA(claims=tuple(claims), draws=draws or Draws())
    return Theory(
        key="kernel-pca",
        title="kernel PCA",
        claims=(*measured.claims, KERNEL),
        measure=measured.measure,
        claims_of=measured.claims_of,
        needs=frozenset({Need.WEIGHTS}),
        words=WORDS,
        picture=spectrum,
        positions=POSITIONS,
        question=QUESTION,
    )


THEORY = make_theory()
