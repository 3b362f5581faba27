"""Theorem checks of the max-margin theory; tests/theories/max_margin tests the same facts over random inputs."""

import pytest

from lab.tests.theorems.conftest import Verification

IDS = [f"M{number}" for number in range(1, 10)]


@pytest.mark.parametrize("id", IDS)
def test_theorem_holds_and_its_control_fails(verification: Verification, id: str) -> None:
    check = verification.by_id("max margin")[id]
    assert check.holds
    assert check.residual <= check.tolerance == 1e-10
    assert check.control_residual > 0.1


def test_all_theorems_are_checked(verification: Verification) -> None:
    assert list(verification.by_id("max margin")) == IDS
