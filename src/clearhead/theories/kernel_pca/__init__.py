"""Attention as kernel principal component analysis (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762).

Their theorem 1: softmax attention projects its queries on the principal axes of its keys in a feature space, if the
values hold the eigenvectors of the keys' centred Gram matrix. A reproduction finds no such values in trained models
(Saritas and Yildiz 2025, arXiv 2505.07908).
"""

from clearhead.theories.kernel_pca.claims import CAPTURED, CLAIMS
from clearhead.theories.kernel_pca.controls import Draws
from clearhead.theories.kernel_pca.dispute import DISPUTE
from clearhead.theories.kernel_pca.measurement import KernelPCAClaims
from clearhead.theories.kernel_pca.spans import captured_variance
from clearhead.theories.kernel_pca.theorems import theorems
from clearhead.theories.theory import Theory

__all__ = [
    "CAPTURED",
    "CLAIMS",
    "DISPUTE",
    "THEORY",
    "Draws",
    "KernelPCAClaims",
    "captured_variance",
    "theorems",
]

THEORY = Theory(name="kernel-pca", title="kernel PCA", begin=KernelPCAClaims, theorems=theorems, dispute=DISPUTE)
