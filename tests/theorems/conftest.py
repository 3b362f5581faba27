from dataclasses import dataclass

import pytest
import torch

from clearhead.findings import Theorem
from clearhead.theories.catalogue import all_theorems


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Every row of `clearhead verify`, and torch's random numbers before and after."""

    rows: list[Theorem]
    before: torch.Tensor
    after: torch.Tensor

    def of(self, source: str) -> dict[str, Theorem]:
        """The rows of one theory by their identifiers."""
        return {row.id: row for row in self.rows if row.source == source}


@pytest.fixture(scope="session")
def verified() -> Verified:
    """Checked once: it takes seconds."""
    before = torch.get_rng_state()
    return Verified(rows=all_theorems(), before=before, after=torch.get_rng_state())
