"""Constraints stored as factors give the same results as stored matrices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.numerics.least_distance import UnitRows
from clearhead.theories.max_margin.svm.constraints import Constraints, UnitConstraints, selection_constraints
from tests.theories.max_margin.problems import feasible_problem

seeds = st.integers(0, 2**31)


def random_constraints(seed: int) -> tuple[Constraints, np.ndarray]:
    """Return constraints of sequences, one of which has a single token, and their matrices."""
    problem = feasible_problem(5, 7, 11, 3, seed=seed)
    mask = np.random.default_rng(seed).random((5, 7)) < 0.7
    mask[np.arange(5), problem.selected] = True
    mask[2] = np.arange(7) == int(problem.selected[2])
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected, mask=torch.from_numpy(mask))
    return rows, np.einsum("jd,je->jde", rows.delta, rows.z[rows.sequence])


@given(seeds)
def test_products_and_sums_are_those_of_the_stored_matrices(seed: int) -> None:
    rows, stored = random_constraints(seed)
    generator = np.random.default_rng(seed)
    W, weights = generator.standard_normal((11, 3)), generator.standard_normal(rows.count)
    weights[generator.random(rows.count) < 0.3] = 0
    np.testing.assert_allclose(rows.values(W), np.einsum("jde,de->j", stored, W), atol=1e-12)
    np.testing.assert_allclose(rows.combined(weights), np.einsum("j,jde->de", weights, stored), atol=1e-12)
    np.testing.assert_allclose(rows.lengths, np.linalg.norm(stored, axis=(1, 2)), rtol=1e-12)
    some = np.flatnonzero(weights > 0)
    np.testing.assert_allclose(rows.at(some).values(W), rows.values(W)[some])
    assert not rows.combined(np.zeros(rows.count)).any()


@given(seeds, st.booleans())
def test_unit_constraints_are_unit_rows_with_and_without_a_stored_gram_matrix(seed: int, stored_gram: bool) -> None:
    rows, stored = random_constraints(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitConstraints, "LARGEST_GRAM", 1500 if stored_gram else 3)
        units = UnitConstraints(rows)
    assert isinstance(units, UnitRows)
    flat = stored.reshape(rows.count, -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    x = np.random.default_rng(seed).standard_normal(rows.count)
    where = np.flatnonzero(x > 0)
    np.testing.assert_allclose(units.products(x), flat @ flat.T @ x, atol=1e-12)
    np.testing.assert_allclose(units.combined(x).ravel(), flat.T @ x, atol=1e-12)
    np.testing.assert_allclose(units.gram(where), flat[where] @ flat[where].T, atol=1e-12)
    columns = units.columns(where)
    assert len(columns) <= len(where)
    np.testing.assert_allclose(columns.T @ columns, flat[where] @ flat[where].T, atol=1e-12)
    assert units.size == rows.count
    assert np.linalg.matrix_rank(flat) <= units.rank <= rows.count


def test_a_zero_constraint_with_an_equality_stays_finite() -> None:
    """Such a constraint is empty; scaling it to length one would be zero over zero."""
    rows, _ = random_constraints(0)
    delta = rows.delta.copy()
    delta[0] = 0
    rows = replace(
        rows, delta=delta, equal=np.arange(rows.count) == 0, bound=np.where(np.arange(rows.count) == 0, 0, 1.0)
    )
    units = UnitConstraints(rows)
    assert np.isfinite(units.products(np.ones(rows.count))).all()
    assert rows.units[0] == 1
