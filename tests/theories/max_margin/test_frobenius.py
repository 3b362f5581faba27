"""The matrix of least Frobenius norm: conditions of optimality, its rank, and other ways to the same matrix."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from clearhead.numerics import least_distance, nonnegative_qp
from clearhead.theories.max_margin import Status, attention_svm
from clearhead.theories.max_margin.svm.constraints import UnitConstraints
from clearhead.theories.max_margin.svm.frobenius import Projection, least_frobenius
from clearhead.theories.max_margin.svm.solving import selecting
from tests.theories.max_margin.problems import Problem, at_random, drawn, matrices, scored

seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3, 5, 7), (5, 7, 11, 3), (11, 5, 7, 13), (3, 17, 5, 2), (31, 11, 7, 5)])


def optimal(problem: Problem, W: torch.Tensor, multipliers: torch.Tensor) -> dict[str, float]:
    """By how much each condition is missed that only the least W and its multipliers meet."""
    A, places = matrices(problem)
    weights = multipliers[places[:, 0], places[:, 1]]
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
def test_the_conditions_of_optimality(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = scored(*size, seed=seed)
    found = attention_svm(problem.x, problem.z, problem.selected)
    assert found.status is Status.SOLVED
    assert found.gap <= 1e-10
    assert found.W is not None
    missed = optimal(problem, found.W, found.multipliers)
    assert max(missed.values()) < 1e-9, missed
    assert (found.multipliers[~found.support] == 0).all()


def test_another_matrix_misses_some() -> None:
    """The control of the test above."""
    problem = scored(5, 7, 11, 3)
    found = attention_svm(problem.x, problem.z, problem.selected)
    assert found.W is not None
    assert optimal(problem, 1.001 * found.W, found.multipliers)["stationary"] > 1e-4
    assert optimal(problem, found.W, found.multipliers.roll(1, dims=1))["stationary"] > 1e-2
    assert optimal(problem, 0.999 * found.W, 0.999 * found.multipliers)["feasible"] > 1e-5


@given(seeds, st.sampled_from([(3, 11, 7), (7, 3, 5), (5, 7, 2)]))
@settings(max_examples=15)
def test_the_rank_is_at_most_that_of_the_queries(seed: int, size: tuple[int, int, int]) -> None:
    """W is a sum of g_i z_i^T, so no more than min(n, d)."""
    n, t, d = size
    problem = drawn(n, t, d, seed=seed)
    found = attention_svm(problem.x, problem.z, problem.selected)
    if found.W is not None:
        assert torch.linalg.matrix_rank(found.W, rtol=1e-10) <= min(n, d)


@pytest.mark.parametrize("problem", [drawn(5, 6, 10), drawn(11, 7, 13, seed=3)], ids=["5-6-10", "11-7-13"])
def test_a_support_vector_machine_finds_the_same(problem: Problem) -> None:
    """scikit-learn's on the kernel (delta.delta)(z.z), every point mirrored so that no bias can help."""
    A, _ = matrices(problem)
    flat = A.flatten(1).numpy()
    both = np.vstack([flat, -flat])
    machine = SVC(C=1e6, kernel="precomputed", tol=1e-8).fit(both @ both.T, np.repeat([1, -1], len(flat)))
    W = (machine.dual_coef_[0] @ both[machine.support_]).reshape(A.shape[1:])
    found = attention_svm(problem.x, problem.z, problem.selected)
    assert found.W is not None
    np.testing.assert_allclose(W, found.W.numpy(), atol=1e-5 * np.linalg.norm(W))


def test_known_objectives() -> None:
    """Of drawn problems, as other solvers gave them: what draws the problems, and what solves them, has not changed."""
    known = {(5, 6, 10): 2.620037, (20, 20, 32): 5.641253, (40, 32, 48): 7.966106}
    for size, objective in known.items():
        problem = drawn(*size)
        found = attention_svm(problem.x, problem.z, problem.selected)
        assert found.objective == pytest.approx(objective, abs=5e-7)


@given(seeds)
@settings(max_examples=15)
def test_the_nearest_matrix(seed: int) -> None:
    """It meets the constraints, and no mix with another that does is nearer."""
    problem = scored(5, 7, 11, 3, seed=seed)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    generator = np.random.default_rng(seed)
    near = generator.standard_normal((11, 3))
    found = least_frobenius(rows, near=near)
    assert found.converged
    assert rows.values(found.W).min() > 1 - 1e-9
    distance = np.linalg.norm(found.W - near)
    for other in (least_frobenius(rows).W, least_frobenius(rows, near=-near).W):
        for part in (1e-3, 0.5, 1.0):
            assert np.linalg.norm(found.W + part * (other - found.W) - near) >= distance * (1 - 1e-12)


def test_one_projection_for_many() -> None:
    """What it keeps does not show."""
    problem = scored(5, 7, 11, 3)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    projection, start = Projection(rows), None
    for seed in range(5):
        near = np.random.default_rng(seed).standard_normal((11, 3))
        found, fresh = projection.nearest(near, start=start), least_frobenius(rows, near=near)
        np.testing.assert_allclose(found.W, fresh.W, atol=1e-10)
        start = found.multipliers


@given(seeds)
@settings(max_examples=10)
def test_more_constraints_than_are_stored(seed: int) -> None:
    problem = scored(7, 11, 5, 3, seed=seed)
    stored = attention_svm(problem.x, problem.z, problem.selected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitConstraints, "STORED", 13)
        through_factors = attention_svm(problem.x, problem.z, problem.selected)
    assert stored.W is not None
    assert through_factors.status is Status.SOLVED
    torch.testing.assert_close(through_factors.W, stored.W, rtol=0, atol=1e-10 * float(stored.W.norm()))


def test_more_active_constraints_than_are_solved_for_are_bracketed_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """First-order steps alone: the answer says that it is unfinished, and its bracket holds the true margin."""
    problem = drawn(11, 13, 17)
    whole = attention_svm(problem.x, problem.z, problem.selected)
    monkeypatch.setattr(nonnegative_qp, "LARGEST", 5)
    monkeypatch.setattr(least_distance.optimize, "nnls", _endless)
    found = attention_svm(problem.x, problem.z, problem.selected)
    assert found.status is Status.UNFINISHED
    assert found.W is not None
    assert 0.9 * whole.margin.low < found.margin.low < whole.margin.low < found.margin.high < 1.1 * whole.margin.high


def _endless(*_: object, **__: object) -> None:
    raise RuntimeError("Maximum number of iterations reached.")


def test_equalities_alone() -> None:
    """Scores given, none to win: the least matrix with them."""
    problem = at_random(3, 5, 7, 2)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    wanted = np.linspace(-1, 2, rows.count)
    rows = replace(rows, equal=np.ones(rows.count, dtype=bool), bound=wanted)
    found = least_frobenius(rows)
    A, _ = matrices(problem)
    expected = np.linalg.lstsq(A.flatten(1).numpy(), wanted, rcond=None)[0]
    np.testing.assert_allclose(found.W.ravel(), expected, atol=1e-9)
