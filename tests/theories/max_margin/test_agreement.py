"""The same problems through cvxpy: Clarabel for the Frobenius and the max-entry norm, SCS for the nuclear one."""

import cvxpy
import pytest

from clearhead.theories.max_margin import Norm, Status, attention_svm
from tests.theories.max_margin.problems import Problem, at_random, drawn, matrices, scored

AGREED = 1e-5
PROBLEMS = {
    **{
        f"drawn {size} {seed}": drawn(*size, seed=seed)
        for size in ((5, 6, 10), (7, 5, 3), (3, 11, 7))
        for seed in (1, 2, 3, 4, 5)
    },
    **{
        f"scored {size} {seed}": scored(*size, seed=seed)
        for size in ((2, 3, 5, 7), (11, 7, 5, 3), (13, 5, 7, 2), (5, 13, 3, 1))
        for seed in (1, 2, 3, 4, 5)
    },
    **{
        f"at random {size} {seed}": at_random(*size, seed=seed)
        for size in ((7, 5, 3, 2), (5, 7, 2, 3), (13, 11, 3, 2))
        for seed in (1, 2, 3, 4, 5)
    },
}


def least_norm(problem: Problem, norm: Norm) -> float | None:
    """The objective of cvxpy's answer; None where it finds the problem infeasible."""
    A, _ = matrices(problem)
    W = cvxpy.Variable(A.shape[1:])
    objective = {
        Norm.FROBENIUS: lambda: cvxpy.norm(W, "fro"),
        Norm.NUCLEAR: lambda: cvxpy.normNuc(W),
        Norm.MAX_ENTRY: lambda: cvxpy.max(cvxpy.abs(W)),
    }[norm]()
    asked = cvxpy.Problem(cvxpy.Minimize(objective), [A.flatten(1).numpy() @ cvxpy.vec(W, order="C") >= 1])
    if norm is Norm.NUCLEAR:
        asked.solve(solver="SCS", eps_abs=1e-8, eps_rel=1e-8, max_iters=100_000)
    else:
        asked.solve(solver="CLARABEL")
    if asked.status.startswith("infeasible"):
        return None
    assert asked.status == "optimal", asked.status
    return float(asked.value)


@pytest.fixture(autouse=True)
def _as_shipped(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("shapes are checked elsewhere; the other solver takes its time once")


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("name", PROBLEMS)
def test_objective_and_verdict_agree(name: str, norm: Norm) -> None:
    problem = PROBLEMS[name]
    theirs = least_norm(problem, norm)
    ours = attention_svm(problem.x, problem.z, problem.selected, norm=norm)
    assert (ours.status is Status.INFEASIBLE) == (theirs is None)
    if theirs is not None:
        assert ours.status is Status.SOLVED
        assert ours.objective == pytest.approx(theirs, rel=AGREED)


def test_both_verdicts_are_met() -> None:
    """The control of the test above: it compares feasible and infeasible problems."""
    verdicts = [
        attention_svm(problem.x, problem.z, problem.selected).status is Status.INFEASIBLE
        for problem in PROBLEMS.values()
    ]
    assert 3 < sum(verdicts) < len(verdicts) - 3
    assert len(PROBLEMS) * len(Norm) >= 50


def test_another_problem_does_not_agree() -> None:
    """Theirs: one seed's answer is not another's."""
    first, second = PROBLEMS["drawn (5, 6, 10) 1"], PROBLEMS["drawn (5, 6, 10) 2"]
    ours = attention_svm(first.x, first.z, first.selected)
    assert ours.objective != pytest.approx(least_norm(second, Norm.FROBENIUS), rel=1e-3)
