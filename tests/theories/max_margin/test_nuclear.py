"""The matrix of least nuclear norm: proved on every random problem with stored constraint matrices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.theories.max_margin import Norm, Status, attention_svm
from clearhead.theories.max_margin.svm.constraints import Constraints, selection_constraints
from clearhead.theories.max_margin.svm.frobenius import least_frobenius
from clearhead.theories.max_margin.svm.norms import least_nuclear
from clearhead.theories.max_margin.svm.solution import bracket
from clearhead.theories.max_margin.svm.solving import TOLERANCE
from tests.theories.max_margin.problems import (
    Problem,
    attained_margin,
    feasible_problem,
    linear_problem,
    margin_bound,
    matrix_norm,
)

NUCLEAR = Norm.NUCLEAR
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3, 5), (5, 7, 11), (11, 5, 7), (3, 17, 5), (13, 11, 7)])


@given(seeds, sizes)
@settings(max_examples=15)
def test_the_bounds_are_within_the_tolerance(seed: int, size: tuple[int, int, int]) -> None:
    n, t, d = size
    problem = feasible_problem(n, t, d, d + 2, seed=seed)
    result = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR)
    assert result.status is Status.SOLVED
    assert result.W is not None
    low, high = attained_margin(problem, result.W, NUCLEAR), margin_bound(problem, result.multipliers, NUCLEAR)
    assert 0 < low <= high * (1 + 1e-12)
    assert high - low <= TOLERANCE[NUCLEAR] * high
    assert result.objective == pytest.approx(matrix_norm(result.W, NUCLEAR), rel=1e-12)


def test_the_least_frobenius_norm_is_not_the_least_nuclear_norm() -> None:
    """The control of the test above: the bounds by the other norm's solution are far apart."""
    problem = feasible_problem(5, 7, 11, 13)
    other = attention_svm(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=NUCLEAR)
    assert other.W is not None
    assert attained_margin(problem, other.W, NUCLEAR) < 0.95 * best.margin.low
    assert margin_bound(problem, other.multipliers, NUCLEAR) > 1.05 * best.margin.high


@given(seeds)
@settings(max_examples=5)
def test_rotations_of_tokens_and_queries_do_not_change_the_objective(seed: int) -> None:
    problem = feasible_problem(5, 7, 11, 3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(w, w, generator=generator, dtype=torch.float64))[0] for w in (11, 3))
    rotated = Problem(problem.x @ left, problem.z @ right, problem.selected)
    margins = [attention_svm(p.x, p.z, p.selected, norm=NUCLEAR).margin for p in (problem, rotated)]
    assert margins[0].low <= margins[1].high
    assert margins[1].low <= margins[0].high


def test_the_rank_is_exact_and_lower_than_that_of_the_frobenius_norm() -> None:
    problem = linear_problem(11, 13, 17)
    ranks = {}
    for norm in (Norm.FROBENIUS, NUCLEAR):
        W = attention_svm(problem.x, problem.z, problem.selected, norm=norm).W
        assert W is not None
        values = torch.linalg.svdvals(W)
        ranks[norm] = int((values > 1e-12 * values.max()).sum())
    assert ranks[NUCLEAR] < ranks[Norm.FROBENIUS] == 11


def test_both_norms_agree_for_a_prompt() -> None:
    """A prompt has one singular value."""
    problem = feasible_problem(5, 7, 11, 1)
    solutions = [attention_svm(problem.x, problem.z, problem.selected, norm=norm) for norm in (Norm.FROBENIUS, NUCLEAR)]
    assert solutions[0].W is not None
    torch.testing.assert_close(solutions[0].W, solutions[1].W)


def with_equalities(seed: int) -> Constraints:
    problem = linear_problem(5, 7, 11, seed=seed)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    equal = np.arange(rows.count) % 4 == 0
    return replace(rows, equal=equal, bound=np.where(equal, 0.0, 1.0))


@given(seeds)
@settings(max_examples=5)
def test_equalities_are_satisfied(seed: int) -> None:
    rows = with_equalities(seed)
    least = least_frobenius(rows)
    result = least_nuclear(rows, least, tolerance=1e-6)
    assert result.converged
    values = rows.values(result.W)
    assert np.abs(values[rows.equal]).max() < 1e-10
    assert values[~rows.equal].min() > 1 - 1e-10
    interval = bracket(rows, result.W, result.multipliers, NUCLEAR)
    assert interval.high - interval.low <= 1e-6 * interval.high
    assert np.linalg.norm(result.W, "nuc") < np.linalg.norm(least.W, "nuc")


def test_equalities_raise_the_norm() -> None:
    """The control of the test above: without equalities the norm is lower."""
    rows = with_equalities(0)
    inequalities = replace(rows.at(np.flatnonzero(~rows.equal)))
    norms = [
        float(np.linalg.norm(least_nuclear(r, least_frobenius(r), tolerance=1e-6).W, "nuc"))
        for r in (rows, inequalities)
    ]
    assert norms[1] < 0.99 * norms[0]
