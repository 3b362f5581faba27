"""Theorem checks of kernel PCA; tests/operators tests theorem 1 itself over random shapes."""

import dataclasses
import importlib.metadata
import math
from typing import Any

import pytest
import torch

from clearhead.theories.catalogue import find_theories
from clearhead_lab.theorems import kernel_pca as theorems
from lab.tests.theorems.conftest import Verification

IDS = [f"K{number}" for number in range(1, 27)]


@pytest.mark.parametrize("id", IDS)
def test_theorem_holds_and_its_control_fails(verification: Verification, id: str) -> None:
    check = verification.by_id("kernel PCA")[id]
    assert check.holds
    assert check.residual <= 1e-12
    assert check.control_residual > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_printed_inverse_recovers_constant_vectors_from_random_values(dtype: torch.dtype) -> None:
    """K26 takes the limit. This is what torch computes here: no inverse, no finite one, or constant vectors."""
    tokens, columns = 197, 5
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(tokens, columns, generator=generator, dtype=torch.float64).to(dtype) + 0.1
    centring = torch.eye(tokens, dtype=dtype) - 1 / tokens
    inverse, info = torch.linalg.inv_ex(centring)
    if int(info) != 0 or not bool(inverse.isfinite().all()):
        return
    a = (inverse @ w).double()
    # Entries of the inverse are at least 1 / (N eps) / N, and multiply the sum of a column of w.
    rounding = 10 * tokens * torch.finfo(dtype).eps
    assert float((a - a.mean(dim=0)).norm() / a.norm()) < 10 * rounding
    by_least_squares = torch.linalg.pinv(centring, hermitian=True, rtol=rounding) @ w
    assert torch.allclose(by_least_squares, w - w.mean(dim=0), atol=rounding)


def test_every_theorem_of_every_theory_has_its_own_identifier(verification: Verification) -> None:
    assert list(verification.by_id("kernel PCA")) == IDS
    assert len({check.id for check in verification.checks} - {""}) == len(verification.checks)


def test_statements_are_short_and_do_not_repeat(verification: Verification) -> None:
    statements = [check.statement for check in verification.checks]
    assert len(set(statements)) == len(statements)
    assert max(map(len, statements)) < 130


def test_check_that_needs_a_missing_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = importlib.metadata.distribution

    def without_scikit_learn(name: str) -> Any:
        if name == "scikit-learn":
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(importlib.metadata, "distribution", without_scikit_learn)
    missing = [check for check in theorems.theorems() if check.missing]
    assert [(check.id, check.missing) for check in missing] == [("K8", "scikit-learn")]
    assert math.isnan(missing[0].residual)
    assert not missing[0].holds


def test_check_fails_if_a_residual_is_too_large_or_the_control_too_small(verification: Verification) -> None:
    check = verification.checks[0]
    assert not dataclasses.replace(check, residual=2 * check.tolerance).holds
    assert not dataclasses.replace(check, residual_single=2 * check.tolerance_single).holds
    assert not dataclasses.replace(check, control_residual=check.tolerance).holds
    assert not dataclasses.replace(check, residual=float("nan")).holds


def test_theories_are_found_by_name() -> None:
    assert [theory.key for theory in find_theories([])] == [
        "kernel-pca", "max-margin", "coding-rate", "symmetry", "attention-sinks",
    ]  # fmt: skip
    assert [theory.key for theory in find_theories(["kernel-pca", "kernel-pca"])] == ["kernel-pca"]
    assert [theory.key for theory in find_theories(["symmetry", "kernel-pca"])] == ["symmetry", "kernel-pca"]
    with pytest.raises(ValueError, match="no theory is called kernel; installed: kernel-pca, max-margin"):
        find_theories(["kernel"])
