"""Attention as kernel principal component analysis (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762).

Their theorem 1: softmax attention projects its queries on the principal axes of its keys in a feature space, if the
values hold the eigenvectors of the keys' centred Gram matrix. A reproduction finds no such values in trained models
(Saritas and Yildiz 2025, arXiv 2505.07908).
"""

from clearhead.theories.kernel_pca.captured import CLAIM, CapturedVariance, captured_variance
from clearhead.theories.kernel_pca.theorems import theorem_values, theorems
from clearhead.theories.theory import Theory

__all__ = ["CLAIM", "THEORY", "CapturedVariance", "captured_variance", "theorem_values", "theorems"]

THEORY = Theory(name="kernel-pca", title="kernel PCA", begin=CapturedVariance, theorems=theorems)
