"""The bracket of a margin is true, whatever matrix and multipliers it is made of."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.theories.max_margin import Norm, attention_svm
from clearhead.theories.max_margin.svm.norms import bracket, dual_norm, norm_of
from clearhead.theories.max_margin.svm.solving import selecting
from tests.theories.max_margin.problems import Problem, scored

seeds = st.integers(0, 2**31)
norms = st.sampled_from(list(Norm))


@given(seeds, norms)
def test_dual_norms_bound_inner_products_and_are_reached(seed: int, norm: Norm) -> None:
    generator = np.random.default_rng(seed)
    A, W = generator.standard_normal((2, 5, 7))
    assert abs((A * W).sum()) <= norm_of(W, norm) * dual_norm(A, norm) * (1 + 1e-12)
    U, _, Vt = np.linalg.svd(A, full_matrices=False)
    best = {Norm.FROBENIUS: A, Norm.NUCLEAR: np.outer(U[:, 0], Vt[0]), Norm.MAX_ENTRY: np.sign(A)}[norm]
    assert (A * best).sum() == pytest.approx(norm_of(best, norm) * dual_norm(A, norm), rel=1e-12)


@given(seeds, norms)
@settings(max_examples=30)
def test_no_matrix_and_no_multipliers_make_a_false_bracket(seed: int, norm: Norm) -> None:
    """Random ones, and ones near the best, as a solver that stops early or errs would offer."""
    problem = scored(5, 7, 3, 2, seed=seed)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected, norm=norm)
    assert best.W is not None
    right = best.multipliers.numpy()[rows.sequence, rows.token]
    generator = np.random.default_rng(seed)
    for noise in (1e-9, 1e-3, 1.0, 100.0):
        W = best.W.numpy() + noise * np.abs(best.W.numpy()).max() * generator.standard_normal(best.W.shape)
        multipliers = right + noise * right.max() * generator.standard_normal(len(right))
        found = bracket(rows, W, multipliers, norm)
        assert found.low <= best.margin.high * (1 + 1e-12)
        assert found.high >= best.margin.low * (1 - 1e-12)


def test_a_false_certificate_would_be_seen() -> None:
    """The control of the test above: the mean of the margins for their least, and a norm that is not the dual, do claim
    what is not so."""
    problem = scored(5, 7, 3, 2, seed=1)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected)
    assert best.W is not None
    assert rows.values(best.W.numpy()).mean() / norm_of(best.W.numpy(), Norm.FROBENIUS) > 1.01 * best.margin.high
    multipliers = best.multipliers.numpy()[rows.sequence, rows.token]
    assert dual_norm(rows.combined(multipliers), Norm.NUCLEAR) / multipliers.sum() < 0.99 * best.margin.low


def test_the_bracket_of_nothing_says_nothing() -> None:
    problem = scored(3, 5, 7, 2)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    for norm in Norm:
        found = bracket(rows, np.zeros((7, 2)), np.zeros(rows.count), norm)
        assert (found.low, found.high) == (-np.inf, np.inf)


def test_a_matrix_that_misses_an_equality_reaches_nothing() -> None:
    problem: Problem = scored(3, 5, 7, 2)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    best = attention_svm(problem.x, problem.z, problem.selected)
    assert best.W is not None
    W = best.W.numpy()
    assert bracket(rows, W, np.ones(rows.count), Norm.FROBENIUS).low > 0
    tied = replace(rows, equal=np.arange(rows.count) == 1, bound=np.where(np.arange(rows.count) == 1, 0.0, 1.0))
    assert bracket(tied, W, np.ones(rows.count), Norm.FROBENIUS).low == -np.inf
