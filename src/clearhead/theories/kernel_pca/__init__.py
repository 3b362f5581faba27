"""Attention as kernel principal component analysis (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762).

Their theorem 1: softmax attention projects its queries on the principal axes of its keys in a feature space, if the
values hold the eigenvectors of the keys' centred Gram matrix. A reproduction finds no such values in trained models
(Saritas and Yildiz 2025, arXiv 2505.07908).
"""

from collections.abc import Sequence

from clearhead.theories.kernel_pca import claims as c
from clearhead.theories.kernel_pca.claims import CAPTURED, CLAIMS
from clearhead.theories.kernel_pca.controls import Draws
from clearhead.theories.kernel_pca.measurement import KERNEL, KernelPCA, spectrum
from clearhead.theories.kernel_pca.spans import captured_variance
from clearhead.theories.theory import Claim, Need, PlainWords, Position, Question, Theory

__all__ = ["CAPTURED", "CLAIMS", "POSITIONS", "QUESTION", "THEORY", "Draws", "captured_variance", "make_theory"]

POSITIONS = (
    Position(
        source="Teo and Nguyen, NeurIPS 2024 (arXiv 2406.13762)",
        says="Yes. The projection loss falls as a model is trained, and values recovered from trained models are "
        "eigenvectors of the keys' Gram matrix: gamma hardly differs between tokens, compared with eigenvalues "
        "of at most 648.46 and 40.07 on average.",
        rests_on=tuple(
            claim.statistic
            for claim in (c.LOSS, c.GAMMA, c.GAMMA_DEVIATION, c.EIGENVALUES["max"], c.EIGENVALUES["mean"])
        ),
    ),
    Position(
        source="Saritas and Yildiz 2025 (arXiv 2505.07908)",
        says="No. Learned values are not aligned with the theorem's: optimal cosine at most 0.32, linear CKA at "
        "most 0.11, kernel CKA at most 0.32. The loss falls because outputs shrink, and the outputs are larger "
        "than the features that they should reconstruct. The eigenvalues cannot be reproduced.",
        rests_on=tuple(
            claim.statistic
            for claim in (
                c.TOKEN_COSINE, c.PUBLISHED_LINEAR_CKA, c.PUBLISHED_KERNEL_CKA, c.LOSS_QUERY, c.LOSS_OUTPUT,
                c.EIGENVALUES["max"], c.STANDARDISED_EIGENVALUES["max"],
            )
        ),
    ),
)  # fmt: skip

QUESTION = Question(
    text="Do trained heads project their queries on the principal axes of their keys?",
    evidence=(
        "Section 2.2.2 of Teo and Nguyen recovers the eigenvectors as (I - 1_N)^-1 G^-1 V. I - 1_N is the centring "
        "matrix, which is singular. A numerical inverse of it multiplies the mean of each column by 1e5 and more, so "
        "every recovered vector is constant, and gamma is 0 for any values (theorem check K26). With random keys and "
        "values, N = 197 and float32, mean |gamma_i - gamma_j| is 6e-13 by this inverse and 3e-6 by least squares. "
        "The code of that section is not public, so it is not known which was used. The statistics here use least "
        "squares.",
        "The published eigenvalues (648.46, and 40.07 on average over 64 axes, with N = 197) cannot be those of this "
        "matrix: their sum is at most N (K13).",
    ),
)


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
