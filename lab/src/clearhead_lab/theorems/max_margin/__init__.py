"""Theorem checks of the max-margin theory (Tarzanagh et al. 2023): the attention SVM, and where training leads."""

from clearhead_lab.theorems.max_margin.convergence import CONVERGENCE_THEOREMS
from clearhead_lab.theorems.max_margin.svm import SVM_THEOREMS
from clearhead_lab.theorems.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem of the max-margin theory on random problems."""
    return check_theorems((*SVM_THEOREMS, *CONVERGENCE_THEOREMS), source="max margin")
