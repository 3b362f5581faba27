"""The rows of `clearhead verify` on coding rates; tests/theories/coding_rate checks the same over drawn inputs."""

import pytest
import torch

from tests.theorems.conftest import Verified

IDS = [f"R{number}" for number in range(1, 20)]


@pytest.mark.parametrize("row", IDS)
def test_every_row_holds_and_its_control_fails(verified: Verified, row: str) -> None:
    theorem = verified.of("coding rate")[row]
    assert theorem.holds
    assert theorem.residual <= 1e-6
    assert theorem.control_residual > 1e-3
    assert len(theorem.statement) < 120


def test_there_is_no_other_row_and_no_random_number_is_taken(verified: Verified) -> None:
    assert list(verified.of("coding rate")) == IDS
    assert torch.equal(verified.before, verified.after)
