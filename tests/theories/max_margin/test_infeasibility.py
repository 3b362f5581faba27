"""Infeasible problems are recognised, and the tokens that are named contradict each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.numerics import least_distance
from clearhead.theories.max_margin import Conflict, MaxMargin, Norm, Status, attention_svm
from clearhead.theories.max_margin.svm.constraints import selection_constraints
from clearhead.theories.max_margin.svm.frobenius import LeastNorm, decide
from tests.theories.max_margin.problems import Problem, feasible_problem, margin_bound, matrices, random_selection

seeds = st.integers(0, 2**31)
norms = pytest.mark.parametrize("norm", list(Norm))
ROUNDING = 1e-13


def solved(problem: Problem, norm: Norm = Norm.FROBENIUS, mask: torch.Tensor | None = None) -> MaxMargin:
    return attention_svm(problem.x, problem.z, problem.selected, norm=norm, mask=mask)


def contradiction(difference: float = 0.0) -> Problem:
    """Return two sequences of the same two tokens that select different ones, for queries that differ a little."""
    tokens = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    queries = torch.tensor([[1.0, 2.0], [1.0, 2.0 + difference]], dtype=torch.float64)
    return Problem(tokens.expand(2, 2, 3), queries, torch.tensor([0, 1]))


@norms
def test_a_contradictory_pair_is_named(norm: Norm) -> None:
    result = solved(contradiction(), norm)
    assert result.status is Status.INFEASIBLE
    assert result.W is None
    assert (result.margin.low, result.margin.high) == (0, 0)
    assert result.conflict is not None
    assert set(result.conflict.tokens) == {(0, 1), (1, 0)}
    assert result.conflict.weights == pytest.approx((0.5, 0.5))
    assert result.conflict.residual < ROUNDING
    assert "token 1 of sequence 0" in result.conflict.reason
    assert result.norm is norm


@norms
def test_a_pair_that_nearly_contradicts_is_solved(norm: Norm) -> None:
    """The control of the test above: a small distance is not zero."""
    result = solved(contradiction(difference=1e-5), norm)
    assert result.status is Status.SOLVED
    assert 0 < result.margin.low < 1e-4


@given(seeds, st.sampled_from([(13, 17, 3, 2), (31, 7, 2, 3), (29, 11, 3, 5)]))
@settings(max_examples=15)
def test_the_weights_prove_that_zero_is_in_the_convex_hull(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = random_selection(*size, seed=seed)
    result = solved(problem)
    assert result.status is Status.INFEASIBLE
    assert result.conflict is not None
    assert sum(result.conflict.weights) == pytest.approx(1)
    assert min(result.conflict.weights) > 0
    A, tokens = matrices(problem)
    units = A.flatten(1) / A.flatten(1).norm(dim=1, keepdim=True)
    index = {tuple(token): j for j, token in enumerate(tokens.tolist())}
    total = sum(
        w * units[index[token]] for w, token in zip(result.conflict.weights, result.conflict.tokens, strict=True)
    )
    assert float(torch.linalg.norm(total)) < ROUNDING
    assert result.conflict.residual < ROUNDING
    for norm in Norm:  # the multipliers prove it in every norm
        assert margin_bound(problem, result.multipliers, norm) < ROUNDING * float(A.flatten(1).norm(dim=1).max())


@given(seeds)
@settings(max_examples=5)
def test_the_named_tokens_are_a_minimal_conflict(seed: int) -> None:
    problem = random_selection(11, 13, 2, 3, seed=seed)
    conflict = solved(problem).conflict
    assert conflict is not None
    named = torch.zeros(11, 13, dtype=torch.bool)
    named[torch.arange(11), problem.selected] = True
    for token in conflict.tokens:
        named[token] = True
    assert solved(problem, mask=named).status is Status.INFEASIBLE
    for token in conflict.tokens:
        fewer = named.clone()
        fewer[token] = False
        assert solved(problem, mask=fewer).status is Status.SOLVED


@norms
def test_feasibility_does_not_depend_on_the_norm(norm: Norm) -> None:
    """For sizes at which about half of the random selections are feasible."""
    problems = [random_selection(7, 5, 3, 2, seed=seed) for seed in range(12)]
    statuses = [solved(problem, norm).status for problem in problems]
    assert statuses == [solved(problem).status for problem in problems]
    assert set(statuses) == {Status.SOLVED, Status.INFEASIBLE}


def test_decide_returns_a_separating_matrix_for_a_feasible_problem() -> None:
    problem = feasible_problem(31, 11, 3, 2)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    result = decide(rows, np.zeros(rows.count))
    assert isinstance(result, LeastNorm)
    assert rows.values(result.W).min() > 0


def test_equalities_can_contradict_margins() -> None:
    """One token must score the same as the selected token and lower: both constraints are the same row."""
    problem = feasible_problem(3, 5, 7, 2)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    rows = rows.at(np.array([0, 0, 1, 2, 5, 8]))
    equal = np.arange(6) == 0
    result = decide(replace(rows, equal=equal, bound=np.where(equal, 0.0, 1.0)), np.zeros(6))
    assert isinstance(result, Conflict)
    assert result.tokens == ((int(rows.sequence[1]), int(rows.token[1])),)
    assert result.residual < ROUNDING
    assert isinstance(decide(rows.at(np.arange(1, 6)), np.zeros(5)), LeastNorm)


def test_an_undecided_problem_is_not_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_convergence(*_: object, **__: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    problem = random_selection(13, 17, 3, 2)
    assert solved(problem).status is Status.INFEASIBLE
    monkeypatch.setattr(least_distance.optimize, "nnls", no_convergence)
    for norm in Norm:
        result = solved(problem, norm)
        assert result.status is Status.UNFINISHED
        assert result.W is None
        assert result.margin.low == 0 < result.margin.high
