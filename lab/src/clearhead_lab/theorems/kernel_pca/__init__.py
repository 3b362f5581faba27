"""Theorem checks of kernel PCA (Teo and Nguyen 2024): theorem 1, remarks 1 to 3, the projection loss, pursuit,
and the singular inverse of section 2.2.2."""

from clearhead_lab.theorems.kernel_pca.axes import AXES_THEOREMS
from clearhead_lab.theorems.kernel_pca.pursuit import PURSUIT_THEOREMS
from clearhead_lab.theorems.kernel_pca.remarks import REMARKS, ROW_SUMS, SINGULAR_INVERSE
from clearhead_lab.theorems.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem of kernel PCA on one random example."""
    every = (*AXES_THEOREMS, *REMARKS, *PURSUIT_THEOREMS, *ROW_SUMS, *SINGULAR_INVERSE)
    return check_theorems(every, source="kernel PCA")
