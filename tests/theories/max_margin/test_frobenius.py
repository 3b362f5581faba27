"""The matrix of least Frobenius norm: optimality conditions, rank, and agreement with other solvers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from clearhead.numerics import least_distance, nonnegative_qp
from clearhead.theories.max_margin import Status, attention_svm
from clearhead.theories.max_margin.svm.constraints import UnitConstraints, selection_constraints
from clearhead.theories.max_margin.svm.frobenius import Projection, least_frobenius
from tests.theories.max_margin.problems import Problem, feasible_problem, linear_problem, matrices, random_selection

seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3, 5, 7), (5, 7, 11, 3), (11, 5, 7, 13), (3, 17, 5, 2), (31, 11, 7, 5)])


def violations(problem: Problem, W: torch.Tensor, multipliers: torch.Tensor) -> dict[str, float]:
    """Return the violation of each optimality condition, zero only for the least W and its multipliers."""
    A, tokens = matrices(problem)
    weights = multipliers[tokens[:, 0], tokens[:, 1]]
    values = torch.einsum("jde,de->j", A, W)
    size = float(W.norm() * A.flatten(1).norm(dim=1).max())
    return {
        "feasible": float((1 - values).max()) / size,
        "stationary": float((torch.einsum("j,jde->de", weights, A) - W).norm() / W.norm()),
        "signs": float((-weights).max()) / float(weights.max()),
        "complementary": float((weights * (values - 1)).abs().max() / weights.max()) / size,
    }


@given(seeds, sizes)
@settings(max_examples=25)
def test_optimality_conditions(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = feasible_problem(*size, seed=seed)
    result = attention_svm(problem.x, problem.z, problem.selected)
    assert result.status is Status.SOLVED
    assert result.gap <= 1e-10
    assert result.W is not None
    violated = violations(problem, result.W, result.multipliers)
    assert max(violated.values()) < 1e-9, violated
    assert (result.multipliers[~result.support] == 0).all()


def test_another_matrix_violates_them() -> None:
    """The control of the test above."""
    problem = feasible_problem(5, 7, 11, 3)
    result = attention_svm(problem.x, problem.z, problem.selected)
    assert result.W is not None
    assert violations(problem, 1.001 * result.W, result.multipliers)["stationary"] > 1e-4
    assert violations(problem, result.W, result.multipliers.roll(1, dims=1))["stationary"] > 1e-2
    assert violations(problem, 0.999 * result.W, 0.999 * result.multipliers)["feasible"] > 1e-5


@given(seeds, st.sampled_from([(3, 11, 7), (7, 3, 5), (5, 7, 2)]))
@settings(max_examples=15)
def test_the_rank_is_at_most_that_of_the_queries(seed: int, size: tuple[int, int, int]) -> None:
    """W is a sum of g_i z_i^T, so its rank is at most min(n, d)."""
    n, t, d = size
    problem = linear_problem(n, t, d, seed=seed)
    result = attention_svm(problem.x, problem.z, problem.selected)
    if result.W is not None:
        assert torch.linalg.matrix_rank(result.W, rtol=1e-10) <= min(n, d)


@pytest.mark.parametrize(
    "problem", [linear_problem(5, 6, 10), linear_problem(11, 7, 13, seed=3)], ids=["5-6-10", "11-7-13"]
)
def test_a_support_vector_machine_finds_the_same(problem: Problem) -> None:
    """scikit-learn's SVC on the kernel (delta.delta)(z.z), with every point mirrored so that the bias is zero."""
    A, _ = matrices(problem)
    flat = A.flatten(1).numpy()
    both = np.vstack([flat, -flat])
    machine = SVC(C=1e6, kernel="precomputed", tol=1e-8).fit(both @ both.T, np.repeat([1, -1], len(flat)))
    W = (machine.dual_coef_[0] @ both[machine.support_]).reshape(A.shape[1:])
    result = attention_svm(problem.x, problem.z, problem.selected)
    assert result.W is not None
    np.testing.assert_allclose(W, result.W.numpy(), atol=1e-5 * np.linalg.norm(W))


def test_known_objectives() -> None:
    """Objectives that other solvers gave, so that neither the random problems nor the solver change unnoticed."""
    known = {(5, 6, 10): 2.620037, (20, 20, 32): 5.641253, (40, 32, 48): 7.966106}
    for size, objective in known.items():
        problem = linear_problem(*size)
        result = attention_svm(problem.x, problem.z, problem.selected)
        assert result.objective == pytest.approx(objective, abs=5e-7)


@given(seeds)
@settings(max_examples=15)
def test_the_nearest_matrix(seed: int) -> None:
    """It satisfies the constraints, and no convex combination with another feasible matrix is nearer."""
    problem = feasible_problem(5, 7, 11, 3, seed=seed)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    generator = np.random.default_rng(seed)
    near = generator.standard_normal((11, 3))
    result = Projection(rows).nearest(near)
    assert result.converged
    assert rows.values(result.W).min() > 1 - 1e-9
    distance = np.linalg.norm(result.W - near)
    for other in (least_frobenius(rows).W, Projection(rows).nearest(-near).W):
        for step in (1e-3, 0.5, 1.0):
            assert np.linalg.norm(result.W + step * (other - result.W) - near) >= distance * (1 - 1e-12)


def test_reusing_a_projection_does_not_change_its_results() -> None:
    problem = feasible_problem(5, 7, 11, 3)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    projection, start = Projection(rows), None
    for seed in range(5):
        near = np.random.default_rng(seed).standard_normal((11, 3))
        result, fresh = projection.nearest(near, start=start), Projection(rows).nearest(near)
        np.testing.assert_allclose(result.W, fresh.W, atol=1e-10)
        start = result.multipliers


@given(seeds)
@settings(max_examples=10)
def test_solution_without_a_stored_gram_matrix(seed: int) -> None:
    problem = feasible_problem(7, 11, 5, 3, seed=seed)
    stored = attention_svm(problem.x, problem.z, problem.selected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitConstraints, "LARGEST_GRAM", 13)
        through_factors = attention_svm(problem.x, problem.z, problem.selected)
    assert stored.W is not None
    assert through_factors.status is Status.SOLVED
    torch.testing.assert_close(through_factors.W, stored.W, rtol=0, atol=1e-10 * float(stored.W.norm()))


def test_an_unfinished_solution_has_valid_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With first-order steps only, the status is unfinished, and the bounds contain the true margin."""
    problem = linear_problem(11, 13, 17)
    whole = attention_svm(problem.x, problem.z, problem.selected)
    monkeypatch.setattr(nonnegative_qp, "LARGEST", 5)
    monkeypatch.setattr(least_distance.optimize, "nnls", _no_convergence)
    result = attention_svm(problem.x, problem.z, problem.selected)
    assert result.status is Status.UNFINISHED
    assert result.W is not None
    assert 0.9 * whole.margin.low < result.margin.low < whole.margin.low < result.margin.high < 1.1 * whole.margin.high


def _no_convergence(*_: object, **__: object) -> None:
    raise RuntimeError("Maximum number of iterations reached.")


def test_equalities_alone() -> None:
    """With equalities only, it is the least-norm solution of the linear system."""
    problem = random_selection(3, 5, 7, 2)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    bound = np.linspace(-1, 2, rows.count)
    rows = replace(rows, equal=np.ones(rows.count, dtype=bool), bound=bound)
    result = least_frobenius(rows)
    A, _ = matrices(problem)
    expected = np.linalg.lstsq(A.flatten(1).numpy(), bound, rcond=None)[0]
    np.testing.assert_allclose(result.W.ravel(), expected, atol=1e-9)
