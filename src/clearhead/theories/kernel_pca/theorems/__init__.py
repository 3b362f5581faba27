"""Theorem checks of kernel PCA (Teo and Nguyen 2024): theorem 1, remarks 1 to 3, the projection loss, pursuit."""

from clearhead.theories.kernel_pca.theorems.axes import AXES_THEOREMS
from clearhead.theories.kernel_pca.theorems.pursuit import PURSUIT_THEOREMS
from clearhead.theories.kernel_pca.theorems.remarks import REMARKS, ROW_SUMS
from clearhead.theories.theorem import check_theorems
from clearhead.theories.theory import TheoremCheck

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem of kernel PCA on one random example."""
    return check_theorems((*AXES_THEOREMS, *REMARKS, *PURSUIT_THEOREMS, *ROW_SUMS), source="kernel PCA")
