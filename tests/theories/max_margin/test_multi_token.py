"""Several selected tokens: against cvxpy on every pair of tokens, and what must hold of the parts."""

import dataclasses

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.shapes import ShapeError
from clearhead.theories.max_margin import Status, attention_svm
from clearhead.theories.max_margin.svm.multi_token import MultiToken, likely_tokens, multi_token_svm, tied_tokens
from tests.experiments.svm.descent.made_tasks import drawn

N, T, D, E = 3, 5, 7, 11
SEEDS = st.integers(0, 2**20)
AGREES = 1e-5
"""cvxpy's solvers stop at about 1e-8 of the objective, the square of this."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    x: torch.Tensor
    z: torch.Tensor
    selected: torch.Tensor
    probabilities: torch.Tensor

    def solved(self) -> MultiToken:
        return multi_token_svm(self.x, self.z, self.selected, probabilities=self.probabilities)


def _drawn(seed: int, *, n: int = N, d: int = D) -> Drawn:
    """Selected sets of one to three tokens, and probabilities from a matrix that sets them."""
    x, z, W = drawn(n, T, d, seed=seed), drawn(n, E, seed=seed + 1), drawn(d, E, seed=seed + 2)
    generator = torch.Generator().manual_seed(seed)
    selected = torch.zeros(n, T, dtype=torch.bool)
    for i in range(n):
        selected[i, torch.randperm(T, generator=generator)[: int(torch.randint(1, 4, (), generator=generator))]] = True
    logits = torch.einsum("ntd,de,ne->nt", x, W / 10, z).masked_fill(~selected, -torch.inf)
    return Drawn(x, z, selected, logits.softmax(dim=-1))


def _by_cvxpy(given: Drawn, *, finite: bool) -> tuple[np.ndarray | None, float]:
    """The definition: every pair of tokens has its own row."""
    W = cvxpy.Variable((given.x.shape[2], E))
    x, z, s = given.x.numpy(), given.z.numpy(), given.probabilities.numpy()
    rows = []
    for i in range(len(x)):
        inside = np.flatnonzero(given.selected[i].numpy())
        for t in inside:
            for u in range(T):
                apart = (x[i, t] - x[i, u]) @ W @ z[i]
                if u in inside and u > t:
                    rows.append(apart == (np.log(s[i, t] / s[i, u]) if finite else 0))
                elif u not in inside and not finite:
                    rows.append(apart >= 1)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(W)), rows)
    problem.solve(solver="CLARABEL")
    return W.value, float(np.sqrt(problem.value)) if np.isfinite(problem.value) else np.inf


@settings(max_examples=20)
@given(SEEDS)
def test_both_parts_are_cvxpys(seed: int) -> None:
    given_ = _drawn(seed)
    found = given_.solved()
    W, size = _by_cvxpy(given_, finite=True)
    assert found.finite is not None
    assert float(found.finite.norm()) == pytest.approx(size, rel=AGREES, abs=AGREES)
    assert np.abs(found.finite.numpy() - W).max() <= 10 * AGREES * max(size, 1)
    W, size = _by_cvxpy(given_, finite=False)
    assert found.direction.status is Status.SOLVED
    assert found.direction.objective == pytest.approx(size, rel=AGREES)
    assert found.direction.W is not None
    assert np.abs(found.direction.W.numpy() - W).max() <= 10 * AGREES * size


@settings(max_examples=20)
@given(SEEDS)
def test_what_is_asked_is_met(seed: int) -> None:
    given_ = _drawn(seed)
    found = given_.solved()
    assert found.finite is not None
    assert found.direction.W is not None
    logits = torch.einsum("ntd,de,ne->nt", given_.x, found.finite, given_.z).masked_fill(~given_.selected, -torch.inf)
    assert (logits.softmax(dim=-1) - given_.probabilities).abs().max() <= 1e-9
    scores = torch.einsum("ntd,de,ne->nt", given_.x, found.direction.W, given_.z)
    for i in range(N):
        inside = scores[i][given_.selected[i]]
        assert inside.max() - inside.min() <= 1e-9
        assert inside.min() - scores[i][~given_.selected[i]].max() >= 1 - 1e-9
    # Both together: the probabilities stay, and other tokens vanish.
    both = torch.einsum("ntd,de,ne->nt", given_.x, found.finite + 50 * found.direction.W, given_.z).softmax(dim=-1)
    assert (both - given_.probabilities).abs().max() <= 1e-9


@settings(max_examples=20)
@given(SEEDS)
def test_the_order_of_tokens_does_not_matter(seed: int) -> None:
    given_ = _drawn(seed)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    turned = Drawn(given_.x[:, order], given_.z, given_.selected[:, order], given_.probabilities[:, order])
    ours, theirs = given_.solved(), turned.solved()
    for mine, other in ((ours.finite, theirs.finite), (ours.direction.W, theirs.direction.W)):
        assert mine is not None
        assert other is not None
        assert (mine - other).norm() <= 1e-8 * (1 + mine.norm())
    assert torch.equal(ours.direction.support[:, order], theirs.direction.support)
    wrong = dataclasses.replace(turned, selected=given_.selected, probabilities=given_.probabilities)
    if not torch.equal(given_.selected, turned.selected):
        W = wrong.solved().direction.W
        assert W is not None
        assert (W - ours.direction.W).norm() > 1e-3


@settings(max_examples=20)
@given(SEEDS)
def test_one_token_each_is_the_attention_svm(seed: int) -> None:
    given_ = _drawn(seed)
    single = given_.selected.int().argmax(dim=1)
    only = torch.nn.functional.one_hot(single, T).bool()
    found, expected = multi_token_svm(given_.x, given_.z, only), attention_svm(given_.x, given_.z, single)
    assert found.finite is not None
    assert not found.finite.any()
    assert torch.equal(found.direction.W, expected.W)
    assert torch.equal(found.direction.support, expected.support)


@settings(max_examples=20)
@given(SEEDS, st.floats(0.1, 1000))
def test_growth_is_found_again(seed: int, growth: float) -> None:
    found = _drawn(seed).solved()
    assert found.finite is not None
    assert found.direction.W is not None
    W = found.finite + growth * found.direction.W
    assert found.growth(W) == pytest.approx(growth, rel=1e-9)
    assert (found.prediction(W) - W).norm() <= 1e-9 * W.norm()
    aside = W + drawn(D, E, seed=seed)
    left = aside - found.prediction(aside)
    assert abs(float((left * found.direction.W).sum())) <= 1e-9 * float(aside.norm() * found.direction.W.norm())


def test_nothing_outside_the_sets_is_trivial() -> None:
    given_ = _drawn(0)
    everything = torch.ones(N, T, dtype=torch.bool)
    found = multi_token_svm(given_.x, given_.z, everything)
    assert found.direction.status is Status.TRIVIAL
    assert found.direction.W is not None
    assert not found.direction.W.any()
    assert found.growth(drawn(D, E, seed=1)) == 0
    hidden = multi_token_svm(given_.x, given_.z, given_.selected, keep=given_.selected)
    assert hidden.direction.status is Status.TRIVIAL
    blank = given_.x.masked_fill(~given_.selected[:, :, None], torch.nan)
    unseen = multi_token_svm(blank, given_.z, given_.selected, keep=given_.selected)
    assert unseen.direction.status is Status.TRIVIAL
    assert multi_token_svm(given_.x, given_.z, given_.selected).direction.status is Status.SOLVED


def test_a_copy_of_a_selected_token_cannot_be_left_out() -> None:
    x, z = drawn(1, 3, D, seed=0), drawn(1, E, seed=1)
    x[0, 2] = x[0, 1]
    found = multi_token_svm(x, z, torch.tensor([[True, True, False]]))
    assert found.direction.status is Status.INFEASIBLE
    assert found.direction.conflict is not None
    assert found.direction.conflict.tokens == ((0, 2),)
    with pytest.raises(ValueError, match="nothing is predicted, as these cannot all score below"):
        found.prediction(drawn(D, E, seed=2))
    together = multi_token_svm(x, z, torch.tensor([[False, True, True]]))
    assert together.direction.status is Status.SOLVED


def test_a_token_between_selected_ones_cannot_be_left_out() -> None:
    """No linear score is the same at both ends and lower between them."""
    x, z = drawn(1, 3, D, seed=0), drawn(1, E, seed=1)
    x[0, 2] = (x[0, 0] + x[0, 1]) / 2
    assert multi_token_svm(x, z, torch.tensor([[True, True, False]])).direction.status is Status.INFEASIBLE
    x[0, 2] += 1e-3 * drawn(D, seed=3)
    assert multi_token_svm(x, z, torch.tensor([[True, True, False]])).direction.status is Status.SOLVED


def test_probabilities_that_no_matrix_gives_are_said_so() -> None:
    x, z = drawn(1, 3, D, seed=0), drawn(1, E, seed=1)
    selected, s = torch.tensor([[True, True, True]]), torch.tensor([[0.5, 0.3, 0.2]]).double()
    x[0, 1] = x[0, 0]
    copied = multi_token_svm(x, z, selected, probabilities=s)
    assert copied.finite is None
    assert copied.reason.startswith("token 1 of sequence 0 scores as the first selected one does")
    with pytest.raises(ValueError, match="nothing is predicted, as token 1"):
        copied.growth(drawn(D, E, seed=2))
    x[0, 1] = (x[0, 0] + x[0, 2]) / 2
    between = multi_token_svm(x, z, selected, probabilities=s)
    assert between.finite is None
    assert between.reason.startswith("no matrix gives the probabilities of all selected tokens; token ")
    even = torch.tensor([[0.8, 0.4, 0.2]]).double() / 1.4
    assert multi_token_svm(x, z, selected, probabilities=even).finite is not None


def test_redundant_equalities_do_no_harm() -> None:
    """More selected tokens than dimensions: what one matrix gave, another of least norm gives again."""
    given_ = _drawn(5, n=2, d=2)
    W = drawn(2, E, seed=9) / 3
    s = torch.einsum("ntd,de,ne->nt", given_.x, W, given_.z).softmax(dim=-1)
    found = multi_token_svm(given_.x, given_.z, torch.ones(2, T, dtype=torch.bool), probabilities=s)
    assert found.finite is not None
    assert found.finite.norm() <= W.norm()
    again = torch.einsum("ntd,de,ne->nt", given_.x, found.finite, given_.z).softmax(dim=-1)
    assert (again - s).abs().max() <= 1e-9


def test_ties_are_selected_together() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0 - 1e-9], [3.0, 1.0, 2.0]], dtype=torch.float64)
    assert tied_tokens(scores, tolerance=1e-6).tolist() == [[False, True, True], [True, False, False]]
    assert tied_tokens(scores, tolerance=0.0).tolist() == [[False, True, False], [True, False, False]]
    keep = torch.tensor([[True, False, False], [False, True, True]])
    assert tied_tokens(scores, tolerance=1e-6, keep=keep).tolist() == [[True, False, False], [False, False, True]]
    keep[0] = False
    assert tied_tokens(scores, tolerance=1e-6, keep=keep).tolist() == [[False] * 3, [False, False, True]]
    assert likely_tokens(torch.tensor([[0.998, 0.001, 0.0009]], dtype=torch.float64)).tolist() == [[True, True, False]]


def test_operands_that_do_not_fit_are_refused(typechecked: bool) -> None:
    x, z, chosen = drawn(N, T, D, seed=0), drawn(N, E, seed=1), torch.ones(N, T, dtype=torch.bool)
    nothing = chosen & False
    with pytest.raises(ValueError, match="a sequence selects no token"):
        multi_token_svm(x, z, nothing)
    with pytest.raises(ValueError, match="hidden by keep"):
        multi_token_svm(x, z, chosen, keep=nothing)
    with pytest.raises(ValueError, match="a selected token has no probability"):
        multi_token_svm(x, z, chosen, probabilities=torch.zeros(N, T).double())
    if not typechecked:
        with pytest.raises(ShapeError, match=r"expected x .* got x \(3, 5, 7\), z \(3, 11\), selected \(3, 4\)"):
            multi_token_svm(x, z, chosen[:, 1:])
