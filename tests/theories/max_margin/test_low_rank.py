"""Matrices of bounded rank: the convex solution if it has that rank, otherwise a local one with a valid bound."""

import numpy as np
import pytest
import torch

from clearhead.theories.max_margin import MarginWarning, Norm, Status, attention_svm
from clearhead.theories.max_margin.svm.solving import truncated
from tests.theories.max_margin.problems import Problem, attained_margin, feasible_problem, linear_problem, margin_bound

NUCLEAR = Norm.NUCLEAR


def rank_of(W: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(W, rtol=1e-9))


def test_an_inactive_rank_bound_changes_nothing() -> None:
    problem = linear_problem(5, 6, 10)
    free = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR)
    assert free.W is not None
    assert rank_of(free.W) == 3
    for rank in (3, 4, 100):
        result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=rank)
        assert result.status is Status.SOLVED
        assert result.objective == pytest.approx(free.objective, rel=1e-9)


@pytest.mark.parametrize("rank", [1, 2])
def test_an_active_rank_bound(rank: int) -> None:
    """The rank is attained, the bounds are valid, and the margin is smaller than without the rank bound."""
    problem = linear_problem(5, 6, 10)
    free = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR)
    result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=rank)
    assert result.status is Status.LOCAL
    assert result.W is not None
    assert rank_of(result.W) == rank
    assert result.margin.low == pytest.approx(attained_margin(problem, result.W, NUCLEAR), rel=1e-12)
    assert result.margin.high == pytest.approx(margin_bound(problem, result.multipliers, NUCLEAR), rel=1e-12)
    assert result.margin.low < free.margin.low
    assert result.support.sum() < 20, "for a local solution the gap does not decide which constraints are active"


def test_a_local_solution_is_better_than_truncating_the_convex_one() -> None:
    problem = linear_problem(5, 6, 10)
    free = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR)
    assert free.W is not None
    nearest = torch.from_numpy(truncated(free.W.numpy(), 2))
    result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=2)
    assert attained_margin(problem, nearest, NUCLEAR) < 0.99 * result.margin.low


def test_no_small_change_of_the_factors_is_better() -> None:
    problem = feasible_problem(11, 7, 5, 3)
    result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=2)
    assert result.status is Status.LOCAL
    assert result.W is not None
    generator = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(30):
            perturbed = result.W.numpy() + size * float(result.W.norm()) * generator.standard_normal((5, 3)) / 4
            other = torch.from_numpy(truncated(perturbed, 2))
            assert attained_margin(problem, other, NUCLEAR) <= result.margin.low * (1 + 1e-6)


def test_a_warning_names_a_rank_that_is_too_low() -> None:
    """The entries of W must have the signs ++ and +-, which no matrix of rank one has."""
    x = -torch.tensor([[[0, 0], [1, 0], [0, 1]], [[0, 0], [1, 0], [0, -1]]], dtype=torch.float64)
    problem = Problem(x, torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    assert attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR).status is Status.SOLVED
    with pytest.warns(MarginWarning, match="no separating matrix of rank 1 was found"):
        result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=1)
    assert result.status is Status.UNFINISHED
    assert result.W is None
    assert result.margin.low == 0 < result.margin.high
    assert result.objective == np.inf
    assert "raise rank" in result.remarks[-1]


@pytest.mark.parametrize(("rank", "norm"), [(0, NUCLEAR), (-1, NUCLEAR), (2, Norm.FROBENIUS), (2, Norm.MAX_ENTRY)])
def test_invalid_ranks_are_refused(rank: int, norm: Norm) -> None:
    problem = linear_problem(2, 3, 5)
    with pytest.raises(ValueError, match=f"got rank {rank} with norm {norm}"):
        attention_svm(problem.x, problem.z, problem.selected, norm=norm, rank=rank)


def test_the_solution_is_deterministic() -> None:
    problem = linear_problem(5, 6, 10)
    first, second = (attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR, rank=2).W for _ in range(2))
    assert first is not None
    assert torch.equal(first, second)
