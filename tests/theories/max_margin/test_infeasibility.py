"""Where no matrix selects the tokens: it is decided, and the tokens that are named do contradict each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.numerics import least_distance
from clearhead.theories.max_margin import Conflict, MaxMargin, Norm, Status, attention_svm
from clearhead.theories.max_margin.attention_svm import selecting
from clearhead.theories.max_margin.frobenius import Least
from clearhead.theories.max_margin.infeasibility import decide
from tests.theories.max_margin.problems import Problem, at_random, matrices, proved, scored

seeds = st.integers(0, 2**31)
norms = pytest.mark.parametrize("norm", list(Norm))
ROUNDING = 1e-13


def solved(problem: Problem, norm: Norm = Norm.FROBENIUS, keep: torch.Tensor | None = None) -> MaxMargin:
    return attention_svm(problem.x, problem.z, problem.selected, norm=norm, keep=keep)


def contradiction(turn: float = 0.0) -> Problem:
    """Two sequences of the same two tokens, of which each selects another, for queries that differ by `turn`."""
    tokens = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    queries = torch.tensor([[1.0, 2.0], [1.0, 2.0 + turn]], dtype=torch.float64)
    return Problem(tokens.expand(2, 2, 3), queries, torch.tensor([0, 1]))


@norms
def test_a_contradictory_pair_is_named(norm: Norm) -> None:
    found = solved(contradiction(), norm)
    assert found.status is Status.INFEASIBLE
    assert found.W is None
    assert (found.margin.low, found.margin.high) == (0, 0)
    assert found.conflict is not None
    assert set(found.conflict.tokens) == {(0, 1), (1, 0)}
    assert found.conflict.weights == pytest.approx((0.5, 0.5))
    assert found.conflict.residual < ROUNDING
    assert "token 1 of sequence 0" in found.conflict.reason
    assert found.norm is norm


@norms
def test_a_pair_that_nearly_contradicts_is_solved(norm: Norm) -> None:
    """The control of the test above: what decides is whether the distance is zero, not whether it is small."""
    found = solved(contradiction(turn=1e-5), norm)
    assert found.status is Status.SOLVED
    assert 0 < found.margin.low < 1e-4


@given(seeds, st.sampled_from([(13, 17, 3, 2), (31, 7, 2, 3), (29, 11, 3, 5)]))
@settings(max_examples=15)
def test_the_hull_holds_zero_and_its_weights_show_it(seed: int, size: tuple[int, int, int, int]) -> None:
    problem = at_random(*size, seed=seed)
    found = solved(problem)
    assert found.status is Status.INFEASIBLE
    assert found.conflict is not None
    assert sum(found.conflict.weights) == pytest.approx(1)
    assert min(found.conflict.weights) > 0
    A, places = matrices(problem)
    units = A.flatten(1) / A.flatten(1).norm(dim=1, keepdim=True)
    row = {tuple(place): j for j, place in enumerate(places.tolist())}
    total = sum(w * units[row[place]] for w, place in zip(found.conflict.weights, found.conflict.tokens, strict=True))
    assert float(torch.linalg.norm(total)) < ROUNDING
    assert found.conflict.residual < ROUNDING
    for norm in Norm:  # the multipliers prove it in every norm
        assert proved(problem, found.multipliers, norm) < ROUNDING * float(A.flatten(1).norm(dim=1).max())


@given(seeds)
@settings(max_examples=5)
def test_without_any_one_of_them_the_rest_can_be_selected(seed: int) -> None:
    problem = at_random(11, 13, 2, 3, seed=seed)
    conflict = solved(problem).conflict
    assert conflict is not None
    named = torch.zeros(11, 13, dtype=torch.bool)
    named[torch.arange(11), problem.selected] = True
    for place in conflict.tokens:
        named[place] = True
    assert solved(problem, keep=named).status is Status.INFEASIBLE
    for place in conflict.tokens:
        fewer = named.clone()
        fewer[place] = False
        assert solved(problem, keep=fewer).status is Status.SOLVED


@norms
def test_whether_there_is_one_does_not_depend_on_the_norm(norm: Norm) -> None:
    """Around where random selections stop being possible."""
    problems = [at_random(7, 5, 3, 2, seed=seed) for seed in range(12)]
    verdicts = [solved(problem, norm).status for problem in problems]
    assert verdicts == [solved(problem).status for problem in problems]
    assert set(verdicts) == {Status.SOLVED, Status.INFEASIBLE}


def test_a_matrix_that_separates_is_given_where_there_is_one() -> None:
    problem = scored(31, 11, 3, 2)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    found = decide(rows, np.zeros(rows.count))
    assert isinstance(found, Least)
    assert rows.values(found.W).min() > 0


def test_equalities_can_contradict_margins() -> None:
    """A score that must equal the selected token's and lie below it: the two rows are one and the same."""
    problem = scored(3, 5, 7, 2)
    rows, _ = selecting(problem.x, problem.z, problem.selected)
    rows = rows.at(np.array([0, 0, 1, 2, 5, 8]))
    equal = np.arange(6) == 0
    found = decide(replace(rows, equal=equal, bound=np.where(equal, 0.0, 1.0)), np.zeros(6))
    assert isinstance(found, Conflict)
    assert found.tokens == ((int(rows.sequence[1]), int(rows.token[1])),)
    assert found.residual < ROUNDING
    assert isinstance(decide(rows.at(np.arange(1, 6)), np.zeros(5)), Least)


def test_what_was_not_decided_is_not_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **__: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    problem = at_random(13, 17, 3, 2)
    assert solved(problem).status is Status.INFEASIBLE
    monkeypatch.setattr(least_distance.optimize, "nnls", endless)
    for norm in Norm:
        found = solved(problem, norm)
        assert found.status is Status.UNFINISHED
        assert found.W is None
        assert found.margin.low == 0 < found.margin.high
