"""The provable part of the theory, checked on drawn keys and queries; each row has a control that must fail."""

from collections.abc import Sequence

from clearhead.findings import Theorem
from clearhead.theories.kernel_pca.statement import checked
from clearhead.theories.kernel_pca.theorems_axes import AXES_STATEMENTS
from clearhead.theories.kernel_pca.theorems_pursuit import PURSUIT_STATEMENTS
from clearhead.theories.kernel_pca.theorems_remarks import REMARKS, SCALING

__all__ = ["theorems"]


def theorems() -> Sequence[Theorem]:
    """Every statement of this theory that is checked, with its residual now."""
    return checked((*AXES_STATEMENTS, *REMARKS, *PURSUIT_STATEMENTS, *SCALING))
