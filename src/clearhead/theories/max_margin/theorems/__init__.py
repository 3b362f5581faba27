"""Theorem checks of the max-margin theory (Tarzanagh et al. 2023): the attention SVM, and where training leads."""

from clearhead.theories.max_margin.theorems.convergence import CONVERGENCE_THEOREMS
from clearhead.theories.max_margin.theorems.svm import SVM_THEOREMS
from clearhead.theories.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem of the max-margin theory on random problems."""
    return check_theorems((*SVM_THEOREMS, *CONVERGENCE_THEOREMS), source="max margin")
