"""Every statement of the theory that is checked."""

from collections.abc import Sequence

from clearhead.findings import Theorem
from clearhead.theories.coding_rate.theorems_denoising import DENOISED
from clearhead.theories.coding_rate.theorems_optimum import OPTIMUM
from clearhead.theories.coding_rate.theorems_rate import RATE
from clearhead.theories.coding_rate.theorems_steps import STEPS
from clearhead.theories.coding_rate.theorems_variational import VARIATIONAL
from clearhead.theories.statement import checked

__all__ = ["theorems"]


def theorems() -> Sequence[Theorem]:
    """Every statement, checked now."""
    return checked([*RATE, *OPTIMUM, *STEPS, *VARIATIONAL, *DENOISED], source="coding rate")
