"""Theorem checks of coding rates: the rate, its maximum, one attention step, variational form and denoising."""

from clearhead_lab.theorems.coding_rate.denoising import DENOISING_THEOREMS
from clearhead_lab.theorems.coding_rate.optimum import OPTIMUM_THEOREMS
from clearhead_lab.theorems.coding_rate.rate import RATE_THEOREMS
from clearhead_lab.theorems.coding_rate.steps import STEP_THEOREMS
from clearhead_lab.theorems.coding_rate.variational import VARIATIONAL_THEOREMS
from clearhead_lab.theorems.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem on coding rates on random tokens."""
    every = (*RATE_THEOREMS, *OPTIMUM_THEOREMS, *STEP_THEOREMS, *VARIATIONAL_THEOREMS, *DENOISING_THEOREMS)
    return check_theorems(every, source="coding rate")
