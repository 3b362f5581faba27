"""Loss and gradient of attention: against autograd, differences, and closed forms where autograd is rounding alone."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.numerics.precision import difference_step, tolerance
from clearhead.shapes import ShapeError
from clearhead_lab.experiments.svm.descent.attention_task import (
    CORRELATION,
    LOGISTIC,
    AttentionTask,
    LinearHead,
    evaluate,
    evaluate_by_autograd,
)
from lab.tests.experiments.svm.descent.random_tasks import C, D, E, N, R, T, random_task, random_tensor

LOSSES = (LOGISTIC, CORRELATION)
EXACT = tolerance(torch.float64, terms=N * T * D * E)


@given(st.integers(0, 2**20), st.sampled_from(LOSSES), st.booleans(), st.booleans())
def test_the_closed_form_equals_autograd(seed: int, loss: object, relu: bool, values: bool) -> None:
    task = random_task(seed, relu=relu, loss=loss, values=values)
    W = random_tensor(R, D, E, seed=seed + 9) / 10
    ours, theirs = evaluate(task, W), evaluate_by_autograd(task, W)
    for field in dataclasses.fields(ours):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        assert mine.shape == other.shape
        assert (mine - other).abs().max() <= EXACT * (1 + other.abs().max()), field.name
    assert not torch.allclose(evaluate(task, -W).gradient, theirs.gradient, rtol=0.01)


@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_matches_finite_differences(relu: bool) -> None:
    task, W = random_task(3, relu=relu), random_tensor(R, D, E, seed=4) / 10
    step, along = difference_step(torch.float64), random_tensor(R, D, E, seed=5)
    along /= along.norm()
    ahead, behind = (evaluate(task, W + sign * step * along).loss for sign in (1, -1))
    slope = (evaluate(task, W).gradient * along).sum(dim=(-2, -1))
    assert ((ahead - behind) / (2 * step) - slope).abs().max() <= step


def _pair(gap: float) -> tuple[AttentionTask, torch.Tensor, torch.Tensor]:
    """One sequence of two tokens whose logits differ by `gap`, and its gradient in closed form."""
    x, z, v = random_tensor(1, 1, 2, D, seed=1), random_tensor(1, 1, E, seed=2), random_tensor(1, D, seed=3)
    task = AttentionTask(tokens=x, queries=z, labels=torch.ones(1, 1).double(), head=LinearHead(v), loss=CORRELATION)
    apart, query = x[0, 0, 0] - x[0, 0, 1], z[0, 0]
    W = gap * torch.outer(apart, query) / (apart @ apart) / (query @ query)
    weight = torch.sigmoid(torch.tensor(gap).double()) * torch.sigmoid(torch.tensor(-gap).double())
    return task, W[None], -weight * (apart @ v[0]) * torch.outer(apart, query)[None]


@pytest.mark.parametrize("gap", [3.0, 37.0, 211.0, -211.0])
def test_the_gradient_is_exact_for_saturated_attention(gap: float) -> None:
    task, W, exact = _pair(gap)
    error = (evaluate(task, W).gradient - exact).norm() / exact.norm()
    # The logits themselves are rounded, and the weight is an exponential of their difference.
    assert error <= EXACT * (1 + abs(gap))


def test_control_autograds_gradient_is_not_exact() -> None:
    task, W, exact = _pair(211.0)
    assert (evaluate_by_autograd(task, W).gradient - exact).norm() > 0.1 * exact.norm()


def test_scores_equal_those_of_single_tokens() -> None:
    task = random_task(5, values=True)
    only = torch.full((R, N, T), -torch.inf).double()
    for token in range(T):
        only[:], only[..., token] = 0.0, 1.0
        alone = (only.unsqueeze(-2) @ task.mixed).squeeze(-2)
        expected = task.labels * task.head.value(alone)
        assert (task.token_scores[..., token] - expected).abs().max() <= EXACT * C


def test_operands_that_do_not_fit_are_refused(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook raises first")
    good = random_task(0)
    with pytest.raises(ShapeError, match=r"expected tokens .* got tokens \(2, 3, 5, 7\), queries \(2, 4, 11\)"):
        dataclasses.replace(good, queries=torch.zeros(R, N + 1, E).double())
    with pytest.raises(ShapeError, match="values"):
        dataclasses.replace(good, values=torch.zeros(R, N, T + 1, C).double())
    with pytest.raises(ValueError, match=r"in float64; call \.double"):
        dataclasses.replace(good, labels=good.labels.float())
