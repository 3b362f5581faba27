"""The regularisation path: against a generic solver, and where it leads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from clearhead.numerics.precision import tolerance
from clearhead.theories.max_margin import Norm, attention_svm
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, evaluate
from clearhead_lab.experiments.svm.descent.rules import Direct, Factored, Parameterisation, Parameters
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead_lab.experiments.svm.regularisation_path import regularisation_path
from clearhead_lab.theorems.max_margin.convergence import correlation
from lab.tests.experiments.svm.descent.random_tasks import D, E, R, random_task, random_tensor

M = 3
RADII = (0.5, 1.0, 3.0, 7.0)


def _start(seed: int, *, factored: bool) -> tuple[Parameters, Parameterisation]:
    if factored:
        return (random_tensor(R, D, M, seed=seed), random_tensor(R, E, M, seed=seed + 1)), Factored(0.0)
    return (random_tensor(R, D, E, seed=seed),), Direct()


@settings(max_examples=3)
@given(st.integers(0, 2**20), st.booleans())
def test_larger_norm_bounds_have_a_lower_loss_and_are_attained(seed: int, factored: bool) -> None:
    start, parameters = _start(seed, factored=factored)
    path = regularisation_path(random_task(seed), start, radii=RADII, parameters=parameters, steps=200)
    assert bool((path.loss.diff(dim=0) <= 0).all())
    exact = tolerance(torch.float64)
    for W, radius in zip(path.W, RADII, strict=True):
        if factored:
            assert torch.linalg.matrix_norm(W, "nuc").max() <= radius * (1 + exact)
        else:
            assert (torch.linalg.matrix_norm(W) - radius).abs().max() <= radius * exact
    at = evaluate(random_task(seed), path.W[-1])
    assert torch.equal(at.loss, path.loss[-1])


def _by_scipy(task: AttentionTask, start: np.ndarray, radius: float) -> np.ndarray:
    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = evaluate(task, torch.from_numpy(flat).view(1, D, E))
        return float(at.loss), at.gradient.flatten().numpy()

    inside = {"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w}
    path = optimize.minimize(loss, start, jac=True, constraints=[inside], method="SLSQP", options={"ftol": 1e-14})
    return np.asarray(path.x)


def test_each_norm_bound_has_a_minimum() -> None:
    task = draw_tasks([3], n=3, t=5, d=D)
    task = AttentionTask(tokens=task.tokens, queries=random_tensor(1, 3, E, seed=1), labels=task.labels, head=task.head)
    path = regularisation_path(task, (random_tensor(1, D, E, seed=4),), radii=RADII, tolerance=1e-6)
    assert path.residual.max() <= 1e-6
    for W, loss, radius in zip(path.W, path.loss, RADII, strict=True):
        theirs = _by_scipy(task, (W[0] + 0.1 * random_tensor(D, E, seed=5)).flatten().numpy(), radius)
        assert float(loss) <= float(evaluate(task, torch.from_numpy(theirs).view(1, D, E)).loss) + 1e-10
        assert np.abs(W.flatten().numpy() - theirs).max() <= 1e-4 * radius
    unfinished = regularisation_path(task, (random_tensor(1, D, E, seed=4),), radii=RADII, steps=1)
    assert unfinished.residual.max() > 0.01


@pytest.mark.parametrize("factored", [False, True])
def test_the_path_converges_to_the_svm_of_its_norm(factored: bool) -> None:
    seeds = range(3)
    task = draw_tasks(seeds, n=4, t=5, d=7)
    start = draw_start(seeds, (7, 7), (7, 7))
    path = regularisation_path(
        task,
        start if factored else start[:1],
        radii=[4.0**k for k in range(5)],
        parameters=Factored(0.0) if factored else Direct(),
        steps=700,
    )
    selected = path.attention[-1].argmax(dim=-1)
    own, other = (Norm.NUCLEAR, Norm.FROBENIUS) if factored else (Norm.FROBENIUS, Norm.NUCLEAR)
    near = {}
    for norm in (own, other):
        svms = [attention_svm(task.tokens[r], task.queries[r], selected[r], norm=norm).W for r in seeds]
        near[norm] = correlation(path.W[-1], torch.stack(svms))
    assert near[own].mean() >= 0.98
    assert near[other].mean() <= 0.93


def test_radii_must_grow() -> None:
    for radii in ([], [2.0, 1.0], [0.0, 1.0]):
        with pytest.raises(ValueError, match="expected positive, increasing radii; got"):
            regularisation_path(random_task(0), (random_tensor(R, D, E, seed=0),), radii=radii)
