"""Leading eigenpairs of many matrices against the full decomposition, with close and equal eigenvalues."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics import partial
from clearhead.numerics.eigenpairs import dense_eigenpairs
from clearhead.numerics.partial import leading_eigenpairs
from clearhead.numerics.precision import tolerance
from tests.numerics.test_krylov import decaying, normal, operator

EXACT = tolerance(torch.float64, terms=4096)


def require_pairs(matrix: Tensor, count: int, within: float, **options) -> None:
    found, want = leading_eigenpairs(matrix, count, **options), dense_eigenpairs(matrix, count)
    size = float(want.values.max())
    assert float((found.values - want.values).abs().max()) <= within * size
    assert float((found.vectors.mT @ found.vectors - torch.eye(count)).abs().max()) <= max(
        within, partial.ORTHOGONAL[torch.float64]
    )
    actual = (matrix @ found.vectors - found.vectors * found.values.unsqueeze(-2)).norm(dim=-2)
    assert float(actual.max()) <= within * size
    assert float((actual - found.residual).abs().max()) <= EXACT * size
    assert float((found.following - want.following).abs().max()) <= within * size


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(3, 61), st.integers(0, 2**31))
def test_finds_what_a_full_decomposition_finds(b: int, n: int, seed: int) -> None:
    rows = normal(b, n, n, seed=seed)
    require_pairs(rows @ rows.mT, 1 + seed % (n - 1), EXACT)


@pytest.mark.parametrize("case", ["equal", "zero", "zero rows", "close", "graded", "diagonal"])
def test_hard_spectra_are_solved_all_the_same(case: str) -> None:
    values = {
        "equal": torch.ones(61, dtype=torch.float64),
        "zero": torch.zeros(61, dtype=torch.float64),
        "close": 1 + 1e-12 * decaying(61),
        "graded": decaying(61, power=9.0),
    }.get(case, decaying(61))
    matrix = operator(values)
    if case == "zero rows":
        matrix[31:] = matrix[:, 31:] = 0
    if case == "diagonal":
        matrix = values.diag()
    easy = operator(decaying(61))
    require_pairs(torch.stack([matrix, easy]), 41, EXACT)


def test_without_the_second_solver_close_eigenvalues_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(partial.ORTHOGONAL, torch.float64, float("inf"))
    found = leading_eigenpairs(operator(1 + 1e-12 * decaying(61))[None], 41)
    assert not float((found.vectors.mT @ found.vectors - torch.eye(41)).abs().max()) <= 1e-3


def test_groups_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(5)])
    whole = leading_eigenpairs(matrices, 7)
    monkeypatch.setattr(partial, "LANES", 14)
    parts = leading_eigenpairs(matrices, 7)
    assert float((parts.values - whole.values).abs().max()) <= EXACT
    assert float((parts.vectors - whole.vectors).abs().max()) <= EXACT


def test_single_precision_loses_digits_of_vectors_and_not_of_values() -> None:
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(5)])
    found, want = leading_eigenpairs(matrices, 7, precision=torch.float32), leading_eigenpairs(matrices, 7)
    assert float((found.values - want.values).abs().max()) <= 1e-10
    assert 1e-9 < float(found.residual.max()) <= tolerance(torch.float32)
    assert float(want.residual.max()) <= EXACT
