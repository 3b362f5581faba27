"""Training attention: what must hold of every rule, where it leads, and what rounding does after saturation."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.numerics.precision import tolerance
from clearhead.theories.max_margin import attention_svm
from clearhead_lab.experiments.svm.descent.attention_task import LinearHead, evaluate, evaluate_by_autograd
from clearhead_lab.experiments.svm.descent.dynamics import train, train_jointly
from clearhead_lab.experiments.svm.descent.rules import (
    Direct,
    Factored,
    GradientDescent,
    NormalisedDescent,
    Rule,
    SignDescent,
)
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead_lab.theorems.max_margin.convergence import correlation, locally_optimal, saturated
from lab.tests.experiments.svm.descent.random_tasks import D, E, R, random_task, random_tensor

M = 3
SEEDS = range(5)


@settings(max_examples=30)
@given(st.integers(0, 2**20), st.booleans())
def test_small_plain_steps_lower_the_loss(seed: int, factored: bool) -> None:
    task = random_task(seed)
    start = (
        (random_tensor(R, D, M, seed=seed), random_tensor(R, E, M, seed=seed + 1))
        if factored
        else (random_tensor(R, D, E, seed=seed),)
    )
    start = tuple(p / 10 for p in start)
    parameters = Factored() if factored else Direct()
    run = train(task, start, steps=11, record=range(12), parameters=parameters, rule=GradientDescent(1e-3))
    assert bool((run.loss.diff(dim=0) <= 0).all())
    uphill = train(task, start, steps=11, record=range(12), parameters=parameters, rule=GradientDescent(-1e-3))
    assert bool((uphill.loss.diff(dim=0) >= 0).all())


def _rotation(size: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(random_tensor(size, size, seed=seed))[0]


def _turned(rule: Rule, *, factored: bool) -> float:
    """Return the error of the equivariance of W to rotations of tokens and queries."""
    task, left, right = random_task(1), _rotation(D, 2), _rotation(E, 3)
    assert isinstance(task.head, LinearHead)
    other = dataclasses.replace(
        task, tokens=task.tokens @ left, queries=task.queries @ right, head=LinearHead(task.head.v @ left)
    )
    if factored:
        start = (random_tensor(R, D, M, seed=4), random_tensor(R, E, M, seed=5))
        moved, parameters = (left.mT @ start[0], right.mT @ start[1]), Factored()
    else:
        start, parameters = (random_tensor(R, D, E, seed=4),), Direct()
        moved = (left.mT @ start[0] @ right,)
    plain = train(task, start, steps=23, rule=rule, parameters=parameters).W[-1]
    turned = train(other, moved, steps=23, rule=rule, parameters=parameters).W[-1]
    return float((left.mT @ plain @ right - turned).norm() / plain.norm())


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("rule", [GradientDescent(0.1), NormalisedDescent(0.01)])
def test_rotating_tokens_and_queries_rotates_w(rule: Rule, factored: bool) -> None:
    # Each step may double a rounding error; 2^23 of them are still small compared with the control.
    assert _turned(rule, factored=factored) <= 1e-6
    assert _turned(SignDescent(0.01), factored=factored) > 0.01


def test_runs_are_independent() -> None:
    task, start = draw_tasks([3, 5], n=3, t=5, d=7), draw_start([3, 5], (7, 7))
    alone = train(draw_tasks([5], n=3, t=5, d=7), draw_start([5], (7, 7)), steps=37).W[0, 0]
    assert (train(task, start, steps=37).W[0, 1] - alone).abs().max() <= tolerance(torch.float64) * 37


def test_gradients_of_factors_equal_autograd() -> None:
    K, Q = (random_tensor(R, size, M, seed=size).requires_grad_() for size in (D, E))
    task, penalty = random_task(6), 0.3
    loss = task.loss.value(
        task.labels * task.head.value((task.logits(K @ Q.mT).softmax(dim=-1).unsqueeze(-2) @ task.mixed).squeeze(-2))
    ).mean(dim=-1)
    total = loss.sum() + penalty * (K.pow(2).sum() + Q.pow(2).sum())
    expected = torch.autograd.grad(total, [K, Q])
    with torch.no_grad():
        run = Factored(penalty).gradients((K, Q), evaluate(task, Factored().weights((K, Q))).gradient)
    for ours, theirs in zip(run, expected, strict=True):
        assert (ours - theirs).abs().max() <= tolerance(torch.float64, terms=D * E) * (1 + theirs.abs().max())


def test_recorded_states_are_those_of_the_steps() -> None:
    task, start = random_task(2), (random_tensor(R, D, E, seed=1),)
    run = train(task, start, steps=13, record=[0, 5, 13])
    assert run.steps == (0, 5, 13)
    assert torch.equal(run.W[0], start[0])
    assert torch.equal(run.W[1], train(task, start, steps=5).W[0])
    at = evaluate(task, run.W[1])
    assert torch.equal(run.loss[1], at.loss)
    assert torch.equal(run.largest[1], at.attention.amax(dim=-1))
    assert torch.equal(run.selected[1], task.logits(run.W[1]).argmax(dim=-1))
    assert train(task, start, steps=0).steps == (0,)
    with pytest.raises(ValueError, match=r"expected steps to record from 0 to 13; got \[5, 14\]"):
        train(task, start, steps=13, record=[14, 5])


def test_w_converges_to_the_svm_of_least_frobenius_norm() -> None:
    task = draw_tasks(SEEDS, n=6, t=8, d=10)
    run = train(task, draw_start(SEEDS, (10, 10)), steps=2000, record=(100, 2000))
    svms = [attention_svm(task.tokens[r], task.queries[r], run.selected[-1, r]) for r in range(len(SEEDS))]
    solution = torch.stack([svm.W for svm in svms])
    early, late = (correlation(W, solution) for W in run.W)
    assert late.mean() >= 0.99
    assert early.mean() <= 0.9
    assert bool(saturated(run.attention[-1]).all())
    support = torch.stack([svm.support for svm in svms])
    assert bool(locally_optimal(task.token_scores, run.selected[-1], support).all())
    assert not bool(locally_optimal(-task.token_scores, run.selected[-1], support).any())


def test_factors_converge_to_another_direction() -> None:
    task = draw_tasks(SEEDS, n=6, t=8, d=10)
    start = draw_start(SEEDS, (10, 10), (10, 10))
    run = train(task, start, steps=1000, parameters=Factored())
    svms = [attention_svm(task.tokens[r], task.queries[r], run.selected[-1, r]) for r in range(len(SEEDS))]
    assert correlation(run.W[-1], torch.stack([svm.W for svm in svms])).mean() <= 0.9


def test_after_saturation_rounding_of_autograd_changes_the_direction_of_w() -> None:
    seeds = range(3)
    task, start = draw_tasks(seeds, n=6, t=8, d=10), draw_start(seeds, (10, 10))
    near = {}
    for evaluation in (evaluate, evaluate_by_autograd):
        run = train(task, start, steps=1000, rule=NormalisedDescent(0.4, floor=0.0), evaluation=evaluation)
        svms = [attention_svm(task.tokens[r], task.queries[r], run.selected[-1, r]) for r in seeds]
        near[evaluation] = correlation(run.W[-1], torch.stack([svm.W for svm in svms]))
    assert near[evaluate].min() >= 0.99
    assert near[evaluate_by_autograd].mean() <= 0.95


def test_a_head_trained_together_follows_its_own_gradient() -> None:
    task, start = random_task(4), random_tensor(R, D, E, seed=5) / 10
    assert isinstance(task.head, LinearHead)
    v = task.head.v.clone().requires_grad_()
    outputs = (task.logits(start).softmax(dim=-1).unsqueeze(-2) @ task.mixed).squeeze(-2)
    loss = task.loss.value(task.labels * LinearHead(v).value(outputs)).mean(dim=-1).sum()
    [slope] = torch.autograd.grad(loss, [v])
    run = train_jointly(task, start, steps=1, record=(0, 1), rule=GradientDescent(0.1))
    assert torch.equal(run.v[0], task.head.v)
    assert (run.v[1] - (task.head.v - 0.1 * slope)).abs().max() <= tolerance(torch.float64)
    alone = train(task, (start,), steps=1, rule=GradientDescent(0.1))
    assert torch.equal(run.attention.W[1], alone.W[0])
    with pytest.raises(ValueError, match="joint training needs a linear head"):
        train_jointly(random_task(4, relu=True), start, steps=1)
