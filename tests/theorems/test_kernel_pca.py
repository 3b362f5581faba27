"""The rows of `clearhead verify`; tests/operators checks theorem 1 itself over drawn shapes."""

import dataclasses
import importlib.util
import math

import pytest

from clearhead.theories.catalogue import find_theories
from clearhead.theories.kernel_pca import theorems
from tests.theorems.conftest import Verified

IDS = [f"K{number}" for number in range(1, 26)]


@pytest.mark.parametrize("row", IDS)
def test_every_row_holds_and_its_control_fails(verified: Verified, row: str) -> None:
    theorem = verified.of("kernel PCA")[row]
    assert theorem.holds
    assert theorem.residual <= 1e-12
    assert theorem.control_residual > 1e-3


def test_every_row_of_every_theory_has_an_identifier_of_its_own(verified: Verified) -> None:
    assert [row.id for row in verified.rows if row.source == "kernel PCA"] == IDS
    assert len({row.id for row in verified.rows} - {""}) == len(verified.rows)


def test_a_row_that_needs_a_missing_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else found(name))
    rows = theorems()
    assert [(row.id, row.missing) for row in rows if row.missing] == [("K8", "scikit-learn")]
    row = next(row for row in rows if row.missing)
    assert math.isnan(row.residual)
    assert not row.holds


def test_a_row_can_fail(verified: Verified) -> None:
    theorem = verified.rows[0]
    assert not dataclasses.replace(theorem, residual=2 * theorem.tolerance).holds
    assert not dataclasses.replace(theorem, residual_single=2 * theorem.tolerance_single).holds
    assert not dataclasses.replace(theorem, control_residual=theorem.tolerance).holds
    assert not dataclasses.replace(theorem, residual=float("nan")).holds


def test_theories_are_found_by_name() -> None:
    assert [theory.name for theory in find_theories([])] == ["kernel-pca", "max-margin", "coding-rate", "symmetry"]
    assert [theory.name for theory in find_theories(["kernel-pca", "kernel-pca"])] == ["kernel-pca"]
    assert [theory.name for theory in find_theories(["symmetry", "kernel-pca"])] == ["symmetry", "kernel-pca"]
    with pytest.raises(
        ValueError, match="no theory is called kernel; there is kernel-pca, max-margin, coding-rate, symmetry"
    ):
        find_theories(["kernel"])
