"""Several selected tokens: agreement with cvxpy over all pairs of tokens, and properties of both matrices."""

import dataclasses

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.shapes import ShapeError
from clearhead.theories.max_margin import Status, attention_svm
from clearhead_lab.theorems.max_margin.multi_token import MultiToken, likely_tokens, multi_token_svm
from tests.theories.max_margin.problems import normal

N, T, D, E = 3, 5, 7, 11
SEEDS = st.integers(0, 2**20)
AGREEMENT = 1e-5
"""cvxpy's solvers stop at about 1e-8 of the objective, the square of this."""


@dataclasses.dataclass(frozen=True)
class Operands:
    x: torch.Tensor
    z: torch.Tensor
    selected: torch.Tensor
    probabilities: torch.Tensor

    def solve(self) -> MultiToken:
        return multi_token_svm(self.x, self.z, self.selected, probabilities=self.probabilities)


def _operands(seed: int, *, n: int = N, d: int = D) -> Operands:
    """Return sets of one to three selected tokens, and probabilities that some matrix gives."""
    x, z, W = normal(n, T, d, seed=seed), normal(n, E, seed=seed + 1), normal(d, E, seed=seed + 2)
    generator = torch.Generator().manual_seed(seed)
    selected = torch.zeros(n, T, dtype=torch.bool)
    for i in range(n):
        selected[i, torch.randperm(T, generator=generator)[: int(torch.randint(1, 4, (), generator=generator))]] = True
    logits = torch.einsum("ntd,de,ne->nt", x, W / 10, z).masked_fill(~selected, -torch.inf)
    return Operands(x, z, selected, logits.softmax(dim=-1))


def _by_cvxpy(operands: Operands, *, finite: bool) -> tuple[np.ndarray | None, float]:
    """Solve the definition, with a constraint for every pair of tokens."""
    W = cvxpy.Variable((operands.x.shape[2], E))
    x, z, s = operands.x.numpy(), operands.z.numpy(), operands.probabilities.numpy()
    constraints = []
    for i in range(len(x)):
        inside = np.flatnonzero(operands.selected[i].numpy())
        for t in inside:
            for u in range(T):
                difference = (x[i, t] - x[i, u]) @ W @ z[i]
                if u in inside and u > t:
                    constraints.append(difference == (np.log(s[i, t] / s[i, u]) if finite else 0))
                elif u not in inside and not finite:
                    constraints.append(difference >= 1)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(W)), constraints)
    problem.solve(solver="CLARABEL")
    return W.value, float(np.sqrt(problem.value)) if np.isfinite(problem.value) else np.inf


@settings(max_examples=20)
@given(SEEDS)
def test_both_matrices_agree_with_cvxpy(seed: int) -> None:
    operands = _operands(seed)
    result = operands.solve()
    W, size = _by_cvxpy(operands, finite=True)
    assert result.finite is not None
    assert float(result.finite.norm()) == pytest.approx(size, rel=AGREEMENT, abs=AGREEMENT)
    assert np.abs(result.finite.numpy() - W).max() <= 10 * AGREEMENT * max(size, 1)
    W, size = _by_cvxpy(operands, finite=False)
    assert result.direction.status is Status.SOLVED
    assert result.direction.objective == pytest.approx(size, rel=AGREEMENT)
    assert result.direction.W is not None
    assert np.abs(result.direction.W.numpy() - W).max() <= 10 * AGREEMENT * size


@settings(max_examples=20)
@given(SEEDS)
def test_the_constraints_are_satisfied(seed: int) -> None:
    operands = _operands(seed)
    result = operands.solve()
    assert result.finite is not None
    assert result.direction.W is not None
    logits = torch.einsum("ntd,de,ne->nt", operands.x, result.finite, operands.z).masked_fill(
        ~operands.selected, -torch.inf
    )
    assert (logits.softmax(dim=-1) - operands.probabilities).abs().max() <= 1e-9
    scores = torch.einsum("ntd,de,ne->nt", operands.x, result.direction.W, operands.z)
    for i in range(N):
        inside = scores[i][operands.selected[i]]
        assert inside.max() - inside.min() <= 1e-9
        assert inside.min() - scores[i][~operands.selected[i]].max() >= 1 - 1e-9
    # In the sum, selected tokens keep their probabilities and other tokens vanish.
    both = torch.einsum("ntd,de,ne->nt", operands.x, result.finite + 50 * result.direction.W, operands.z).softmax(
        dim=-1
    )
    assert (both - operands.probabilities).abs().max() <= 1e-9


@settings(max_examples=20)
@given(SEEDS)
def test_the_order_of_tokens_does_not_matter(seed: int) -> None:
    operands = _operands(seed)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    permuted = Operands(operands.x[:, order], operands.z, operands.selected[:, order], operands.probabilities[:, order])
    original, reordered = operands.solve(), permuted.solve()
    for first, second in ((original.finite, reordered.finite), (original.direction.W, reordered.direction.W)):
        assert first is not None
        assert second is not None
        assert (first - second).norm() <= 1e-8 * (1 + first.norm())
    assert torch.equal(original.direction.support[:, order], reordered.direction.support)
    wrong = dataclasses.replace(permuted, selected=operands.selected, probabilities=operands.probabilities)
    if not torch.equal(operands.selected, permuted.selected):
        W = wrong.solve().direction.W
        assert W is not None
        assert (W - original.direction.W).norm() > 1e-3


@settings(max_examples=20)
@given(SEEDS)
def test_one_token_each_is_the_attention_svm(seed: int) -> None:
    operands = _operands(seed)
    single = operands.selected.int().argmax(dim=1)
    only = torch.nn.functional.one_hot(single, T).bool()
    result, expected = multi_token_svm(operands.x, operands.z, only), attention_svm(operands.x, operands.z, single)
    assert result.finite is not None
    assert not result.finite.any()
    assert torch.equal(result.direction.W, expected.W)
    assert torch.equal(result.direction.support, expected.support)


@settings(max_examples=20)
@given(SEEDS, st.floats(0.1, 1000))
def test_growth_recovers_the_coefficient(seed: int, growth: float) -> None:
    result = _operands(seed).solve()
    assert result.finite is not None
    assert result.direction.W is not None
    W = result.finite + growth * result.direction.W
    assert result.growth(W) == pytest.approx(growth, rel=1e-9)
    assert (result.prediction(W) - W).norm() <= 1e-9 * W.norm()
    elsewhere = W + normal(D, E, seed=seed)
    residual = elsewhere - result.prediction(elsewhere)
    assert abs(float((residual * result.direction.W).sum())) <= 1e-9 * float(
        elsewhere.norm() * result.direction.W.norm()
    )


def test_selecting_all_visible_tokens_is_trivial() -> None:
    operands = _operands(0)
    everything = torch.ones(N, T, dtype=torch.bool)
    result = multi_token_svm(operands.x, operands.z, everything)
    assert result.direction.status is Status.TRIVIAL
    assert result.direction.W is not None
    assert not result.direction.W.any()
    assert result.growth(normal(D, E, seed=1)) == 0
    hidden = multi_token_svm(operands.x, operands.z, operands.selected, mask=operands.selected)
    assert hidden.direction.status is Status.TRIVIAL
    blank = operands.x.masked_fill(~operands.selected[:, :, None], torch.nan)
    unread = multi_token_svm(blank, operands.z, operands.selected, mask=operands.selected)
    assert unread.direction.status is Status.TRIVIAL
    assert multi_token_svm(operands.x, operands.z, operands.selected).direction.status is Status.SOLVED


def test_a_copy_of_a_selected_token_must_be_selected() -> None:
    x, z = normal(1, 3, D, seed=0), normal(1, E, seed=1)
    x[0, 2] = x[0, 1]
    result = multi_token_svm(x, z, torch.tensor([[True, True, False]]))
    assert result.direction.status is Status.INFEASIBLE
    assert result.direction.conflict is not None
    assert result.direction.conflict.tokens == ((0, 2),)
    with pytest.raises(ValueError, match="there is no prediction because these tokens cannot all score below"):
        result.prediction(normal(D, E, seed=2))
    together = multi_token_svm(x, z, torch.tensor([[False, True, True]]))
    assert together.direction.status is Status.SOLVED


def test_a_token_between_selected_ones_must_be_selected() -> None:
    """No linear score is the same at both ends and lower between them."""
    x, z = normal(1, 3, D, seed=0), normal(1, E, seed=1)
    x[0, 2] = (x[0, 0] + x[0, 1]) / 2
    assert multi_token_svm(x, z, torch.tensor([[True, True, False]])).direction.status is Status.INFEASIBLE
    x[0, 2] += 1e-3 * normal(D, seed=3)
    assert multi_token_svm(x, z, torch.tensor([[True, True, False]])).direction.status is Status.SOLVED


def test_impossible_probabilities_are_explained() -> None:
    x, z = normal(1, 3, D, seed=0), normal(1, E, seed=1)
    selected, s = torch.tensor([[True, True, True]]), torch.tensor([[0.5, 0.3, 0.2]]).double()
    x[0, 1] = x[0, 0]
    copied = multi_token_svm(x, z, selected, probabilities=s)
    assert copied.finite is None
    assert copied.reason.startswith("token 1 of sequence 0 scores the same as the first selected token")
    with pytest.raises(ValueError, match="there is no prediction because token 1"):
        copied.growth(normal(D, E, seed=2))
    x[0, 1] = (x[0, 0] + x[0, 2]) / 2
    between = multi_token_svm(x, z, selected, probabilities=s)
    assert between.finite is None
    assert between.reason.startswith(
        "no matrix gives all selected tokens their probabilities; the error is largest for token "
    )
    consistent = torch.tensor([[0.8, 0.4, 0.2]]).double() / 1.4
    assert multi_token_svm(x, z, selected, probabilities=consistent).finite is not None


def test_redundant_equalities_are_satisfied() -> None:
    """With more selected tokens than dimensions, the least matrix gives the same probabilities as the original one."""
    operands = _operands(5, n=2, d=2)
    W = normal(2, E, seed=9) / 3
    s = torch.einsum("ntd,de,ne->nt", operands.x, W, operands.z).softmax(dim=-1)
    result = multi_token_svm(operands.x, operands.z, torch.ones(2, T, dtype=torch.bool), probabilities=s)
    assert result.finite is not None
    assert result.finite.norm() <= W.norm()
    again = torch.einsum("ntd,de,ne->nt", operands.x, result.finite, operands.z).softmax(dim=-1)
    assert (again - s).abs().max() <= 1e-9


def test_likely_tokens_have_at_least_the_threshold() -> None:
    assert likely_tokens(torch.tensor([[0.998, 0.001, 0.0009]], dtype=torch.float64)).tolist() == [[True, True, False]]


def test_operands_that_do_not_fit_are_refused(typechecked: bool) -> None:
    x, z, chosen = normal(N, T, D, seed=0), normal(N, E, seed=1), torch.ones(N, T, dtype=torch.bool)
    nothing = chosen & False
    with pytest.raises(ValueError, match="a sequence has no selected token"):
        multi_token_svm(x, z, nothing)
    with pytest.raises(ValueError, match="hidden by the mask"):
        multi_token_svm(x, z, chosen, mask=nothing)
    with pytest.raises(ValueError, match="a selected token has probability zero"):
        multi_token_svm(x, z, chosen, probabilities=torch.zeros(N, T).double())
    if not typechecked:
        with pytest.raises(ShapeError, match=r"expected x .* got x \(3, 5, 7\), z \(3, 11\), selected \(3, 4\)"):
            multi_token_svm(x, z, chosen[:, 1:])
