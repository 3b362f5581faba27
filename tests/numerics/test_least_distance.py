"""Least distances: the shortest vector that satisfies inequalities, or weights that prove that no vector does."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.numerics import least_distance as module
from clearhead.numerics.least_distance import least_distance
from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.numerics.precision import tolerance
from tests.numerics.stored_rows import StoredRows

EXACT = 64 * tolerance(torch.float64)
seeds = st.integers(0, 2**31)


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def separable(count: int, width: int, seed: int) -> Array:
    """Rows on one side of a plane."""
    generator = np.random.default_rng(seed)
    rows, normal = generator.standard_normal((count, width)), generator.standard_normal(width)
    return unit(rows * np.sign(rows @ normal)[:, None])


@given(seeds, st.sampled_from([(2, 3), (13, 7), (29, 5)]))
def test_the_shortest_vector_is_found(seed: int, size: tuple[int, int]) -> None:
    rows = separable(*size, seed)
    bound = np.random.default_rng(seed).exponential(size=size[0])
    result = least_distance(StoredRows(rows), bound, guess=np.zeros(size[0]))
    best = NonnegativeQP(StoredRows(rows)).solve(bound)
    assert result is not None
    assert result.exists
    assert best.converged
    assert (result.weights >= 0).all()
    np.testing.assert_allclose(rows.T @ result.weights, best.w, rtol=1e-7, atol=1e-7 * np.linalg.norm(best.w))


@given(seeds)
def test_infeasible_bounds_are_proved_by_weights(seed: int) -> None:
    """Many more random rows than dimensions surround the origin."""
    rows = unit(np.random.default_rng(seed).standard_normal((61, 5)))
    result = least_distance(StoredRows(rows), np.ones(61), guess=np.zeros(61))
    assert result is not None
    assert not result.exists
    assert (result.weights >= 0).all()
    assert np.linalg.norm(rows.T @ result.weights) < EXACT * result.weights.sum()
    assert result.weights.sum() == pytest.approx(1, abs=EXACT)
    # The combination is minimal: removing any vector makes the rest independent.
    used = np.flatnonzero(result.weights)
    assert np.linalg.matrix_rank(np.vstack([rows[used].T, np.ones(len(used))])) == len(used)


@given(seeds)
def test_equality_rows_are_met_exactly(seed: int) -> None:
    rows = separable(13, 7, seed)
    free, bound = np.arange(13) < 3, np.where(np.arange(13) < 3, 0.0, 1.0)
    result = least_distance(StoredRows(rows), bound, free=free, guess=np.zeros(13))
    assert result is not None
    total = rows.T @ result.weights
    if result.exists:
        values = rows @ total
        assert np.abs(values[:3]).max() < 1e-8 * np.linalg.norm(total)
        assert values[3:].min() > 1 - 1e-8 * np.linalg.norm(total)
    else:
        assert np.linalg.norm(total) < EXACT * np.abs(result.weights).sum()
        assert (result.weights[3:] >= 0).all()


def test_rows_are_added_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bound = separable(101, 7, 0), np.ones(101)
    whole = least_distance(StoredRows(rows), bound, guess=np.zeros(101))
    monkeypatch.setattr(module, "FIRST", 2)
    monkeypatch.setattr(module, "ADDED", 3)
    by_parts = least_distance(StoredRows(rows), bound, guess=np.zeros(101))
    assert whole is not None
    assert by_parts is not None
    np.testing.assert_allclose(rows.T @ by_parts.weights, rows.T @ whole.weights, rtol=1e-9)
    # With a smaller fraction it stops earlier, at a w that does not satisfy all bounds.
    rough = least_distance(StoredRows(rows), bound, guess=np.zeros(101), fraction=0.0)
    assert rough is not None
    assert rough.exists
    values = rows @ (rows.T @ rough.weights)
    assert 0 < values.min() < 1 - 1e-6


def test_least_squares_without_convergence_return_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **__: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(module.optimize, "nnls", endless)
    assert least_distance(StoredRows(separable(5, 3, 0)), np.ones(5), guess=np.zeros(5)) is None
