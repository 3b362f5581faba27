"""Theorem checks of general attention and its symmetries: Ji and Xie's slides in their order, then similarities."""

from clearhead_lab.theorems.symmetry.convolution import CONVOLUTION_THEOREMS
from clearhead_lab.theorems.symmetry.extensions import EXTENSION_THEOREMS
from clearhead_lab.theorems.symmetry.image import IMAGE_THEOREMS
from clearhead_lab.theorems.symmetry.operator import OPERATOR_THEOREMS, SIMILARITY_THEOREMS
from clearhead_lab.theorems.symmetry.permutation import PERMUTATION_THEOREMS
from clearhead_lab.theorems.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem on general attention on random tokens, weights and images."""
    every = (
        *OPERATOR_THEOREMS,
        *IMAGE_THEOREMS,
        *PERMUTATION_THEOREMS,
        *EXTENSION_THEOREMS,
        *CONVOLUTION_THEOREMS,
        *SIMILARITY_THEOREMS,
    )
    return check_theorems(every, source="general attention")
