"""The bounds on a margin hold for any matrix and any multipliers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.theories.max_margin import Norm, attention_svm
from clearhead.theories.max_margin.svm.constraints import selection_constraints
from clearhead.theories.max_margin.svm.solution import bracket, dual_norm, norm_of
from tests.theories.max_margin.problems import Problem, feasible_problem

seeds = st.integers(0, 2**31)
norms = st.sampled_from(list(Norm))


@given(seeds, norms)
def test_dual_norms_bound_inner_products_and_are_attained(seed: int, norm: Norm) -> None:
    generator = np.random.default_rng(seed)
    A, W = generator.standard_normal((2, 5, 7))
    assert abs((A * W).sum()) <= norm_of(W, norm) * dual_norm(A, norm) * (1 + 1e-12)
    U, _, Vt = np.linalg.svd(A, full_matrices=False)
    best = {Norm.FROBENIUS: A, Norm.NUCLEAR: np.outer(U[:, 0], Vt[0]), Norm.MAX_ENTRY: np.sign(A)}[norm]
    assert (A * best).sum() == pytest.approx(norm_of(best, norm) * dual_norm(A, norm), rel=1e-12)


@given(seeds, norms)
@settings(max_examples=30)
def test_bounds_hold_for_any_matrix_and_multipliers(seed: int, norm: Norm) -> None:
    """Random ones, and ones near the optimum, as a solver that stops early would return."""
    problem = feasible_problem(5, 7, 3, 2, seed=seed)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=norm)
    assert best.W is not None
    optimal = best.multipliers.numpy()[rows.sequence, rows.token]
    generator = np.random.default_rng(seed)
    for noise in (1e-9, 1e-3, 1.0, 100.0):
        W = best.W.numpy() + noise * np.abs(best.W.numpy()).max() * generator.standard_normal(best.W.shape)
        multipliers = optimal + noise * optimal.max() * generator.standard_normal(len(optimal))
        result = bracket(rows, W, multipliers, norm)
        assert result.low <= best.margin.high * (1 + 1e-12)
        assert result.high >= best.margin.low * (1 - 1e-12)


def test_wrong_bounds_do_not_hold() -> None:
    """The control of the test above: the mean margin for the least, and a norm that is not the dual."""
    problem = feasible_problem(5, 7, 3, 2, seed=1)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected)
    assert best.W is not None
    assert rows.values(best.W.numpy()).mean() / norm_of(best.W.numpy(), Norm.FROBENIUS) > 1.01 * best.margin.high
    multipliers = best.multipliers.numpy()[rows.sequence, rows.token]
    assert dual_norm(rows.combined(multipliers), Norm.NUCLEAR) / multipliers.sum() < 0.99 * best.margin.low


def test_a_zero_matrix_and_zero_multipliers_give_infinite_bounds() -> None:
    problem = feasible_problem(3, 5, 7, 2)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    for norm in Norm:
        result = bracket(rows, np.zeros((7, 2)), np.zeros(rows.count), norm)
        assert (result.low, result.high) == (-np.inf, np.inf)


def test_a_matrix_that_violates_an_equality_attains_no_margin() -> None:
    problem: Problem = feasible_problem(3, 5, 7, 2)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected)
    assert best.W is not None
    W = best.W.numpy()
    assert bracket(rows, W, np.ones(rows.count), Norm.FROBENIUS).low > 0
    tied = replace(rows, equal=np.arange(rows.count) == 1, bound=np.where(np.arange(rows.count) == 1, 0.0, 1.0))
    assert bracket(tied, W, np.ones(rows.count), Norm.FROBENIUS).low == -np.inf
