"""Quadratic programs over multipliers: optimality conditions, computed here from the stored matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.numerics import nonnegative_qp as module
from clearhead.numerics.least_distance import UnitRows
from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.numerics.precision import tolerance
from tests.numerics.stored_rows import StoredRows

EXACT = 8 * tolerance(torch.float64)
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3), (7, 5), (13, 11), (31, 7), (53, 29)])


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_program(count: int, width: int, seed: int, *, free: int = 0) -> tuple[Array, Array, np.ndarray]:
    """Rows, and a linear term for which some w satisfies f.w >= b, = for the first few: the program is bounded."""
    generator = np.random.default_rng(seed)
    rows = unit(generator.standard_normal((count, width)))
    equal = np.arange(count) < free
    slack = np.where(equal, 0.0, generator.exponential(size=count))
    return rows, rows @ generator.standard_normal(width) * 3 - slack, equal


def violation(rows: Array, linear: Array, equal: np.ndarray, x: Array) -> float:
    """Return the violation of the optimality conditions, relative to the largest number in them."""
    slope = rows @ (rows.T @ x) - linear
    missed = np.concatenate(
        [np.abs(slope[equal]), np.maximum(-x[~equal], 0), np.maximum(-slope[~equal], 0), np.abs(x * slope)[~equal]]
    )
    return float(missed.max(initial=0.0) / (np.abs(x).sum() + np.abs(linear).max()) / max(np.abs(x).max(), 1.0))


@given(seeds, sizes, st.sampled_from([0, 1, 2]))
def test_solutions_satisfy_the_optimality_conditions(seed: int, size: tuple[int, int], free: int) -> None:
    rows, linear, equal = random_program(*size, seed, free=free)
    result = NonnegativeQP(StoredRows(rows), free=equal).solve(linear)
    assert result.converged
    assert violation(rows, linear, equal, result.x) < EXACT
    np.testing.assert_allclose(result.w, rows.T @ result.x, atol=EXACT * (1 + np.abs(result.x).sum()))


@given(seeds)
def test_control_other_vectors_violate_the_optimality_conditions(seed: int) -> None:
    """The control of the test above."""
    rows, linear, equal = random_program(13, 11, seed)
    x = NonnegativeQP(StoredRows(rows)).solve(linear).x
    generator = np.random.default_rng(seed)
    assert violation(rows, linear, equal, generator.exponential(size=13)) > 1e-6
    if x.any():
        assert violation(rows, linear, equal, 1.001 * x) > 1e-9


@given(seeds, sizes)
def test_repeated_rows_do_not_change_w(seed: int, size: tuple[int, int]) -> None:
    rows, linear, _ = random_program(*size, seed)
    once = NonnegativeQP(StoredRows(rows)).solve(linear)
    again = NonnegativeQP(StoredRows(np.repeat(rows, 3, axis=0))).solve(np.repeat(linear, 3))
    assert once.converged
    assert again.converged
    np.testing.assert_allclose(once.w, again.w, atol=1e3 * EXACT * (1 + np.linalg.norm(once.w)))


@given(seeds, sizes)
@settings(max_examples=20)
def test_an_unbounded_program_does_not_converge(seed: int, size: tuple[int, int]) -> None:
    """Two rows that contradict each other: their multipliers can grow without bound."""
    rows, linear, _ = random_program(*size, seed)
    rows[1] = -rows[0]
    linear[:2] = 1.0
    result = NonnegativeQP(StoredRows(rows)).solve(linear)
    assert not result.converged
    assert (result.x >= 0).all()
    linear[:2] = -1.0, 1.0  # control: without the contradiction the program converges
    assert NonnegativeQP(StoredRows(rows[:2])).solve(linear[:2]).converged


@given(seeds, seeds)
@settings(max_examples=30)
def test_the_starting_point_does_not_matter(seed: int, other: int) -> None:
    rows, linear, equal = random_program(31, 7, seed, free=1)
    best = NonnegativeQP(StoredRows(rows), free=equal).solve(linear)
    start = np.random.default_rng(other).standard_normal(31)
    for guess in (best.x, np.where(equal, start, np.maximum(start, 0))):
        result = NonnegativeQP(StoredRows(rows), free=equal).solve(linear, start=guess)
        assert result.converged
        np.testing.assert_allclose(result.w, best.w, atol=1e3 * EXACT * (1 + np.linalg.norm(best.w)))


def test_a_solver_can_be_reused_for_other_linear_terms() -> None:
    """State from one program must not affect the next."""
    rows, first, equal = random_program(31, 11, 0, free=2)
    solver = NonnegativeQP(StoredRows(rows), free=equal)
    start = None
    for seed in range(5):
        linear = first + rows @ np.random.default_rng(seed).standard_normal(11) * 0.1
        result = solver.solve(linear, start=start)
        assert violation(rows, linear, equal, result.x) < EXACT
        start = result.x


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
def test_nearly_parallel_rows_do_not_reduce_the_accuracy_of_w(angle: float) -> None:
    """Rows that nearly contradict each other: multipliers grow as 1 / angle^2, w as 1 / angle, and f.w is accurate to
    the precision of w."""
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0])[:, None]
    rows = unit(signs * np.ones((5, 7)) + angle * np.random.default_rng(0).standard_normal((5, 7)))
    linear = np.array([1.0, 2.0, 1.0, 3.0, 1.0])
    result = NonnegativeQP(StoredRows(rows)).solve(linear)
    assert result.converged
    assert result.x.max() > 0.01 / angle**2
    missing = np.abs(linear - rows @ result.w)[result.x > 0].max()
    assert missing < EXACT * np.linalg.norm(result.w)
    if angle < 1e-3:  # control: w computed from the multipliers is less accurate
        assert np.abs(linear - rows @ (rows.T @ result.x))[result.x > 0].max() > 100 * missing


def test_too_many_multipliers_are_reported_as_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, linear, _ = random_program(53, 29, 1)
    assert NonnegativeQP(StoredRows(rows)).solve(linear).converged
    monkeypatch.setattr(module, "LARGEST", 2)
    result = NonnegativeQP(StoredRows(rows)).solve(linear)
    assert not result.converged
    assert (result.x >= 0).all()
    np.testing.assert_allclose(result.w, rows.T @ result.x, atol=EXACT * np.abs(result.x).sum())


def test_stored_rows_are_unit_rows() -> None:
    rows, _, _ = random_program(7, 5, 0)
    stored, where = StoredRows(rows), np.array([4, 1])
    assert isinstance(stored, UnitRows)
    assert (stored.size, stored.rank) == (7, 5)
    x = np.arange(7.0)
    np.testing.assert_allclose(stored.products(x), rows @ rows.T @ x)
    np.testing.assert_allclose(stored.gram(where), (rows @ rows.T)[np.ix_(where, where)])
    np.testing.assert_allclose(stored.columns(where), rows[where].T)


def test_an_empty_program_is_solved() -> None:
    result = NonnegativeQP(StoredRows(np.zeros((0, 3)))).solve(np.zeros(0))
    assert result.converged
    assert result.w.shape == (3,)


def test_a_w_too_long_for_float64_is_not_converged() -> None:
    """Two rows that nearly contradict each other: |w| is two over the angle, and f.w loses its precision."""
    for angle, result in ((1e-5, True), (1e-11, False)):
        rows = unit(np.array([[1.0, 0.0, 0.0], [-1.0, angle, 0.0]]))
        assert NonnegativeQP(StoredRows(rows)).solve(np.ones(2)).converged is result
