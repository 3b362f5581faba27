"""Theorem checks on coding rates; tests/theories/coding_rate tests the same facts over random inputs."""

import pytest
import torch

from lab.tests.theorems.conftest import Verification

IDS = [f"R{number}" for number in range(1, 20)]


@pytest.mark.parametrize("id", IDS)
def test_theorem_holds_and_its_control_fails(verification: Verification, id: str) -> None:
    check = verification.by_id("coding rate")[id]
    assert check.holds
    assert check.residual <= 1e-6
    assert check.control_residual > 1e-3


def test_all_theorems_are_checked_without_using_the_callers_random_state(verification: Verification) -> None:
    assert list(verification.by_id("coding rate")) == IDS
    assert torch.equal(verification.state_before, verification.state_after)
