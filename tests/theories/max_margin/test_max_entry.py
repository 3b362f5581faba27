"""The matrix whose largest entry is least."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from clearhead.theories.max_margin import Norm, Status, attention_svm
from clearhead.theories.max_margin.svm import max_entry as module
from clearhead.theories.max_margin.svm.frobenius import least_frobenius
from clearhead.theories.max_margin.svm.max_entry import least_max_entry
from clearhead.theories.max_margin.svm.norms import bracket
from clearhead.theories.max_margin.svm.solving import TOLERANCE, selecting
from tests.theories.max_margin.problems import matrices, proved, reached, scored, size_of

ENTRY = Norm.MAX_ENTRY
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 3, 5, 7), (5, 7, 11, 3), (13, 5, 2, 3), (3, 17, 5, 1)])


@given(seeds, sizes)
@settings(max_examples=15)
def test_the_bracket_is_as_narrow_as_promised(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = scored(*size, seed=seed)
    found = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert found.status is Status.SOLVED
    assert found.W is not None
    low, high = reached(problem, found.W, ENTRY), proved(problem, found.multipliers, ENTRY)
    assert 0 < low <= high * (1 + 1e-12)
    assert high - low <= TOLERANCE[ENTRY] * high
    assert found.objective == pytest.approx(size_of(found.W, ENTRY), rel=1e-12)


@given(seeds)
@settings(max_examples=10)
def test_the_program_with_stored_constraints_has_the_same_margin(seed: int) -> None:
    problem = scored(5, 7, 11, 3, seed=seed)
    A, _ = matrices(problem)
    flat = A.flatten(1).numpy()
    m, entries = flat.shape
    stored = optimize.linprog(
        np.append(np.zeros(entries), -1),
        A_ub=np.hstack([-flat, np.ones((m, 1))]),
        b_ub=np.zeros(m),
        bounds=[(-1, 1)] * entries + [(None, None)],
    )
    found = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert found.margin.low == pytest.approx(-stored.fun, rel=1e-6)


def test_the_least_frobenius_norm_has_a_larger_entry() -> None:
    """The control of the tests above."""
    problem = scored(5, 7, 11, 3)
    other = attention_svm(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert other.W is not None
    assert reached(problem, other.W, ENTRY) < 0.9 * best.margin.low
    assert proved(problem, other.multipliers, ENTRY) > 1.1 * best.margin.high


def test_rotations_change_it() -> None:
    """Unlike the other two norms, this one knows coordinates: where they are turned it is another problem."""
    problem = scored(5, 7, 11, 3)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((11, 11)))[0]
    turned = attention_svm(problem.x @ problem.x.new_tensor(turn), problem.z, problem.selected, norm=ENTRY)
    straight = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert abs(turned.objective - straight.objective) > 1e-3 * straight.objective


def test_scores_that_must_be_equal_are() -> None:
    problem = scored(5, 7, 11, 3)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    equal = np.arange(rows.count) % 5 == 0
    rows = replace(rows, equal=equal, bound=np.where(equal, 0.0, 1.0))
    found = least_max_entry(rows, least_frobenius(rows), tolerance=1e-6)
    interval = bracket(rows, found.W, found.multipliers, ENTRY)
    assert found.converged
    assert 0 <= interval.high - interval.low <= 1e-6 * interval.high
    loose = rows.at(np.flatnonzero(~equal))
    easier = least_max_entry(loose, least_frobenius(loose), tolerance=1e-6)
    assert bracket(loose, easier.W, easier.multipliers, ENTRY).low > 1.01 * interval.high


def test_what_is_too_large_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    problem = scored(5, 7, 11, 3)
    with pytest.raises(ValueError, match=r"5 sequences, 30 tokens.*495 coefficients, more than 100; take fewer"):
        attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)


def test_a_program_that_does_not_end_leaves_a_true_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scored(5, 7, 11, 3)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    monkeypatch.setattr(module.optimize, "linprog", lambda *_, **__: optimize.OptimizeResult(x=None))
    found = attention_svm(problem.x, problem.z, problem.selected, norm=ENTRY)
    assert found.status is Status.UNFINISHED
    assert found.margin.low <= best.margin.high
    assert found.margin.high >= best.margin.low
