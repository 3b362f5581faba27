"""Every statement of the sources that is checked: the slides' in their order, then those on similarities."""

from collections.abc import Sequence

from clearhead.findings import Theorem
from clearhead.theories.statement import checked
from clearhead.theories.symmetry.theorems_convolution import CONVOLUTION
from clearhead.theories.symmetry.theorems_image import IMAGE
from clearhead.theories.symmetry.theorems_operator import OPERATOR, SIMILARITY
from clearhead.theories.symmetry.theorems_reach import REACH
from clearhead.theories.symmetry.theorems_symmetry import SYMMETRY

__all__ = ["theorems"]


def theorems() -> Sequence[Theorem]:
    """Every statement of this theory that is checked, with its residual now."""
    return checked([*OPERATOR, *IMAGE, *SYMMETRY, *REACH, *CONVOLUTION, *SIMILARITY], source="general attention")
