"""Update rules: against torch's own optimisers, and what each leaves alike."""

from collections.abc import Callable

import pytest
import torch

from clearhead.numerics.precision import tolerance
from clearhead_lab.experiments.svm.descent.rules import Adam, GradientDescent, NormalisedDescent, Rule, SignDescent
from lab.tests.experiments.svm.descent.random_tasks import random_tensor

EXACT = tolerance(torch.float64)
STEPS = 7
PAIRS: dict[str, tuple[Rule, Callable[..., torch.optim.Optimizer]]] = {
    "plain": (GradientDescent(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "adam": (Adam(0.3), lambda p: torch.optim.Adam(p, lr=0.3)),
    "adamw": (Adam(0.3, decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.3, weight_decay=0.1)),
    "other averages": (Adam(0.3, averages=(0.8, 0.9)), lambda p: torch.optim.Adam(p, lr=0.3, betas=(0.8, 0.9))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_update_rules_equal_torchs(name: str) -> None:
    rule, optimiser = PAIRS[name]
    now = (random_tensor(2, 3, 5, seed=0), random_tensor(2, 7, 3, seed=1))
    theirs = [p.clone().requires_grad_() for p in now]
    stepper, memory = optimiser(theirs), rule.start(now)
    for number in range(STEPS):
        gradients = tuple(random_tensor(*p.shape, seed=number) for p in now)
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g
        stepper.step()
        now, memory = rule.step(now, gradients, memory)
    for ours, other in zip(now, theirs, strict=True):
        assert (ours - other).abs().max() <= EXACT * STEPS


@pytest.mark.parametrize("rule", [NormalisedDescent(0.3), SignDescent(0.3)])
def test_steps_have_one_length_in_every_run_and_parameter(rule: Rule) -> None:
    now = (random_tensor(2, 3, 5, seed=0), random_tensor(2, 7, 3, seed=1))
    scales = torch.tensor([1e-6, 1e3]).double().view(2, 1, 1)
    gradients = tuple(random_tensor(*p.shape, seed=2) * scales for p in now)
    moved, _ = rule.step(now, gradients, rule.start(now))
    for before, after in zip(now, moved, strict=True):
        steps = before - after
        lengths = steps.flatten(1).norm(dim=1) if isinstance(rule, NormalisedDescent) else steps.abs().flatten(1).T
        # The floor takes 2e-16 / 1e-6 off the first run's step.
        assert (lengths - 0.3).abs().max() <= 1e-9
    plain, _ = GradientDescent(0.3).step(now, gradients, None)
    assert ((now[0] - plain[0]).flatten(1).norm(dim=1) - 0.3).abs().min() > 0.2


def test_below_the_floor_steps_vanish_and_without_one_they_do_not() -> None:
    now, tiny = (random_tensor(1, 3, 5, seed=0),), (random_tensor(1, 3, 5, seed=1) * 1e-30,)
    stopped, _ = NormalisedDescent().step(now, tiny, None)
    assert (stopped[0] - now[0]).norm() <= 1e-13
    going, _ = NormalisedDescent(floor=0.0).step(now, tiny, None)
    assert (going[0] - now[0]).norm() == pytest.approx(0.1)
    at_rest, _ = NormalisedDescent(floor=0.0).step(now, (torch.zeros(1, 3, 5).double(),), None)
    assert torch.equal(at_rest[0], now[0])
