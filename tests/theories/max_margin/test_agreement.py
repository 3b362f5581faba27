"""Agreement with cvxpy: Clarabel for the Frobenius and the max-entry norm, SCS for the nuclear norm."""

import cvxpy
import pytest

from clearhead.theories.max_margin import Norm, Status, attention_svm
from tests.theories.max_margin.problems import Problem, feasible_problem, linear_problem, matrices, random_selection

AGREEMENT = 1e-5
PROBLEMS = {
    **{
        f"linear {size} {seed}": linear_problem(*size, seed=seed)
        for size in ((5, 6, 10), (7, 5, 3), (3, 11, 7))
        for seed in (1, 2, 3, 4, 5)
    },
    **{
        f"feasible {size} {seed}": feasible_problem(*size, seed=seed)
        for size in ((2, 3, 5, 7), (11, 7, 5, 3), (13, 5, 7, 2), (5, 13, 3, 1))
        for seed in (1, 2, 3, 4, 5)
    },
    **{
        f"random {size} {seed}": random_selection(*size, seed=seed)
        for size in ((7, 5, 3, 2), (5, 7, 2, 3), (13, 11, 3, 2))
        for seed in (1, 2, 3, 4, 5)
    },
}


def least_norm(problem: Problem, norm: Norm) -> float | None:
    """Return the objective that cvxpy finds; None if it finds the problem infeasible."""
    A, _ = matrices(problem)
    W = cvxpy.Variable(A.shape[1:])
    objective = {
        Norm.FROBENIUS: lambda: cvxpy.norm(W, "fro"),
        Norm.NUCLEAR: lambda: cvxpy.normNuc(W),
        Norm.MAX_ENTRY: lambda: cvxpy.max(cvxpy.abs(W)),
    }[norm]()
    program = cvxpy.Problem(cvxpy.Minimize(objective), [A.flatten(1).numpy() @ cvxpy.vec(W, order="C") >= 1])
    if norm is Norm.NUCLEAR:
        program.solve(solver="SCS", eps_abs=1e-8, eps_rel=1e-8, max_iters=100_000)
    else:
        program.solve(solver="CLARABEL")
    if program.status.startswith("infeasible"):
        return None
    assert program.status == "optimal", program.status
    return float(program.value)


@pytest.fixture(autouse=True)
def _without_type_checks(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("shapes are checked elsewhere; the other solver is slow")


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("name", PROBLEMS)
def test_objective_and_status_agree(name: str, norm: Norm) -> None:
    problem = PROBLEMS[name]
    expected = least_norm(problem, norm)
    solution = attention_svm(problem.x, problem.z, problem.selected, norm=norm)
    assert (solution.status is Status.INFEASIBLE) == (expected is None)
    if expected is not None:
        assert solution.status is Status.SOLVED
        assert solution.objective == pytest.approx(expected, rel=AGREEMENT)


def test_both_statuses_occur() -> None:
    """The control of the test above: it compares feasible and infeasible problems."""
    infeasible = [
        attention_svm(problem.x, problem.z, problem.selected).status is Status.INFEASIBLE
        for problem in PROBLEMS.values()
    ]
    assert 3 < sum(infeasible) < len(infeasible) - 3
    assert len(PROBLEMS) * len(Norm) >= 50


def test_another_problem_does_not_agree() -> None:
    """The control of the test above: different seeds have different objectives."""
    first, second = PROBLEMS["linear (5, 6, 10) 1"], PROBLEMS["linear (5, 6, 10) 2"]
    solution = attention_svm(first.x, first.z, first.selected)
    assert solution.objective != pytest.approx(least_norm(second, Norm.FROBENIUS), rel=1e-3)
