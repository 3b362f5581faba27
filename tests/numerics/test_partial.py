"""Leading eigenpairs of many matrices against the full decomposition, with close and equal eigenvalues."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics import partial
from clearhead.numerics.eigenpairs import dense_eigenpairs
from clearhead.numerics.partial import all_eigenvalues, leading_eigenpairs
from clearhead.numerics.precision import tolerance
from tests.numerics.test_krylov import decaying, normal, operator

EXACT = tolerance(torch.float64, terms=4096)


def require_pairs(matrix: Tensor, count: int, within: float, **options) -> None:
    result, want = leading_eigenpairs(matrix, count, **options), dense_eigenpairs(matrix, count)
    size = float(want.values.max())
    assert float((result.values - want.values).abs().max()) <= within * size
    assert float((result.vectors.mT @ result.vectors - torch.eye(count)).abs().max()) <= max(
        within, partial.ORTHOGONAL[torch.float64]
    )
    actual = (matrix @ result.vectors - result.vectors * result.values.unsqueeze(-2)).norm(dim=-2)
    assert float(actual.max()) <= within * size
    assert float((actual - result.residual).abs().max()) <= EXACT * size
    assert float((result.following - want.following).abs().max()) <= within * size


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(3, 61), st.integers(0, 2**31))
def test_partial_eigenpairs_equal_those_of_a_full_decomposition(b: int, n: int, seed: int) -> None:
    rows = normal(b, n, n, seed=seed)
    require_pairs(rows @ rows.mT, 1 + seed % (n - 1), EXACT)


@pytest.mark.parametrize("case", ["equal", "zero", "zero rows", "close", "graded", "diagonal"])
def test_clustered_and_graded_spectra_are_solved(case: str) -> None:
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


def test_control_without_the_fallback_close_eigenvalues_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(partial.ORTHOGONAL, torch.float64, float("inf"))
    result = leading_eigenpairs(operator(1 + 1e-12 * decaying(61))[None], 41)
    assert not float((result.vectors.mT @ result.vectors - torch.eye(41)).abs().max()) <= 1e-3


def test_groups_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(5)])
    whole = leading_eigenpairs(matrices, 7)
    monkeypatch.setattr(partial, "LANES", 14)
    parts = leading_eigenpairs(matrices, 7)
    assert float((parts.values - whole.values).abs().max()) <= EXACT
    assert float((parts.vectors - whole.vectors).abs().max()) <= EXACT


def test_single_precision_reduces_the_accuracy_of_vectors_only() -> None:
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(5)])
    result, want = leading_eigenpairs(matrices, 7, precision=torch.float32), leading_eigenpairs(matrices, 7)
    assert float((result.values - want.values).abs().max()) <= 1e-10
    assert 1e-9 < float(result.residual.max()) <= tolerance(torch.float32)
    assert float(want.residual.max()) <= EXACT


def on_threads(count: int, function: Callable[[], Any]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return function()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_results_are_bit_identical_for_any_number_of_threads(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "LANES", 14)
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(7)])
    alone, *others = (
        on_threads(count, lambda: leading_eigenpairs(matrices, 7, precision=precision)) for count in (1, 2, 5)
    )
    for other in others:
        for name in ("values", "vectors", "following", "residual"):
            assert torch.equal(getattr(other, name), getattr(alone, name))
    assert not torch.equal(alone.vectors[0], alone.vectors[1])


def test_full_decompositions_are_bit_identical_for_any_number_of_threads() -> None:
    matrices = torch.stack([operator(decaying(61), seed=seed) for seed in range(7)])
    one, two = (on_threads(count, lambda: all_eigenvalues(matrices)) for count in (1, 2))
    assert torch.equal(one, two)
    require = torch.linalg.eigvalsh(matrices).flip(-1)
    assert float((one - require).abs().max()) <= EXACT
    one, two = (on_threads(count, lambda: dense_eigenpairs(matrices.reshape(7, 1, 61, 61), 5)) for count in (1, 2))
    assert torch.equal(one.vectors, two.vectors)
    assert torch.equal(one.values, two.values)
    assert one.vectors.shape == (7, 1, 61, 5)
