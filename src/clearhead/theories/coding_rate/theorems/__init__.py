"""Theorem checks of coding rates: the rate, its maximum, one attention step, variational form and denoising."""

from clearhead.theories.coding_rate.theorems.denoising import DENOISING_THEOREMS
from clearhead.theories.coding_rate.theorems.optimum import OPTIMUM_THEOREMS
from clearhead.theories.coding_rate.theorems.rate import RATE_THEOREMS
from clearhead.theories.coding_rate.theorems.steps import STEP_THEOREMS
from clearhead.theories.coding_rate.theorems.variational import VARIATIONAL_THEOREMS
from clearhead.theories.theorem import TheoremCheck, check_theorems

__all__ = ["theorems"]


def theorems() -> list[TheoremCheck]:
    """Check every theorem on coding rates on random tokens."""
    every = (*RATE_THEOREMS, *OPTIMUM_THEOREMS, *STEP_THEOREMS, *VARIATIONAL_THEOREMS, *DENOISING_THEOREMS)
    return check_theorems(every, source="coding rate")
