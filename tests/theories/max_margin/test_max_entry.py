"""The matrix of least max-entry norm."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from clearhead.theories.max_margin import Norm, Status, attention_svm
from clearhead.theories.max_margin.svm import norms as module
from clearhead.theories.max_margin.svm.constraints import selection_constraints
from clearhead.theories.max_margin.svm.frobenius import least_frobenius
from clearhead.theories.max_margin.svm.norms import least_max_entry
from clearhead.theories.max_margin.svm.solution import bracket
from clearhead.theories.max_margin.svm.solving import TOLERANCE
from tests.theories.max_margin.problems import attained_margin, feasible_problem, margin_bound, matrices, matrix_norm

ENTRY = Norm.MAX_ENTRY
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3, 5, 7), (5, 7, 11, 3), (13, 5, 2, 3), (3, 17, 5, 1)])


@given(seeds, sizes)
@settings(max_examples=15)
def test_the_bounds_are_within_the_tolerance(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = feasible_problem(*size, seed=seed)
    result = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert result.status is Status.SOLVED
    assert result.W is not None
    low, high = attained_margin(problem, result.W, ENTRY), margin_bound(problem, result.multipliers, ENTRY)
    assert 0 < low <= high * (1 + 1e-12)
    assert high - low <= TOLERANCE[ENTRY] * high
    assert result.objective == pytest.approx(matrix_norm(result.W, ENTRY), rel=1e-12)


@given(seeds)
@settings(max_examples=10)
def test_the_program_with_stored_constraints_has_the_same_margin(seed: int) -> None:
    problem = feasible_problem(5, 7, 11, 3, seed=seed)
    A, _ = matrices(problem)
    flat = A.flatten(1).numpy()
    m, entries = flat.shape
    stored = optimize.linprog(
        np.append(np.zeros(entries), -1),
        A_ub=np.hstack([-flat, np.ones((m, 1))]),
        b_ub=np.zeros(m),
        bounds=[(-1, 1)] * entries + [(None, None)],
    )
    result = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert result.margin.low == pytest.approx(-stored.fun, rel=1e-6)


def test_the_least_frobenius_norm_has_a_larger_entry() -> None:
    """The control of the tests above."""
    problem = feasible_problem(5, 7, 11, 3)
    other = attention_svm(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert other.W is not None
    assert attained_margin(problem, other.W, ENTRY) < 0.9 * best.margin.low
    assert margin_bound(problem, other.multipliers, ENTRY) > 1.1 * best.margin.high


def test_rotations_change_the_objective() -> None:
    """Unlike the other two norms, this one depends on the coordinates."""
    problem = feasible_problem(5, 7, 11, 3)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((11, 11)))[0]
    rotated = attention_svm(problem.x @ problem.x.new_tensor(rotation), problem.z, problem.selected, norm=ENTRY)
    original = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert abs(rotated.objective - original.objective) > 1e-3 * original.objective


def test_equalities_are_satisfied() -> None:
    problem = feasible_problem(5, 7, 11, 3)
    rows, _ = selection_constraints(problem.x, problem.z, problem.selected)
    equal = np.arange(rows.count) % 5 == 0
    rows = replace(rows, equal=equal, bound=np.where(equal, 0.0, 1.0))
    result = least_max_entry(rows, least_frobenius(rows), tolerance=1e-6)
    interval = bracket(rows, result.W, result.multipliers, ENTRY)
    assert result.converged
    assert 0 <= interval.high - interval.low <= 1e-6 * interval.high
    inequalities = rows.at(np.flatnonzero(~equal))
    easier = least_max_entry(inequalities, least_frobenius(inequalities), tolerance=1e-6)
    assert bracket(inequalities, easier.W, easier.multipliers, ENTRY).low > 1.01 * interval.high


def test_programs_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COEFFICIENTS", 100)
    problem = feasible_problem(5, 7, 11, 3)
    with pytest.raises(
        ValueError, match=r"5 sequences, 30 constraints.*495 coefficients; at most 100 are allowed. Use fewer"
    ):
        attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)


def test_bounds_are_valid_if_the_solver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = feasible_problem(5, 7, 11, 3)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    monkeypatch.setattr(module.optimize, "linprog", lambda *_, **__: optimize.OptimizeResult(x=None))
    result = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert result.status is Status.UNFINISHED
    assert result.margin.low <= best.margin.high
    assert result.margin.high >= best.margin.low
