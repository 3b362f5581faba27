from dataclasses import dataclass

import pytest
import torch

from clearhead_lab.theorems.table import all_theorems
from clearhead_lab.theorems.theorem import TheoremCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Every theorem check of `clearhead verify`, and torch's random state before and after."""

    checks: list[TheoremCheck]
    state_before: torch.Tensor
    state_after: torch.Tensor

    def by_id(self, source: str) -> dict[str, TheoremCheck]:
        """Return the checks of one theory by their identifiers."""
        return {check.id: check for check in self.checks if check.source == source}


@pytest.fixture(scope="session")
def verification() -> Verification:
    """Run the checks once per session: they take seconds."""
    before = torch.get_rng_state()
    return Verification(checks=all_theorems(), state_before=before, state_after=torch.get_rng_state())
