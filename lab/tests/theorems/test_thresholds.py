"""Thresholding: each proximal step minimises its objective."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.pursuit_options import hard_threshold, soft_threshold
from clearhead_lab.theorems.kernel_pca.pursuit import singular_value_threshold

seeds, thresholds = st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 1.7, 40.0])


def normal(*shape: int, seed: int) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seeds, thresholds)
def test_soft_thresholding_removes_the_clamped_part(seed: int, t: float) -> None:
    x = normal(5, 7, seed=seed)
    torch.testing.assert_close(x - soft_threshold(x, t), x.clamp(-t, t))
    by_row = torch.tensor([0.0, 0.3, 1.7, 2.0, 40.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(x - soft_threshold(x, by_row), x.clamp(-by_row, by_row))


@given(seeds, thresholds)
def test_each_step_minimises_its_objective(seed: int, t: float) -> None:
    """Neither the input nor any nearby point has a lower cost than the output of the step."""
    x = normal(5, 7, seed=seed)
    costs = {
        soft_threshold: lambda y: t * y.abs().sum(),
        hard_threshold: lambda y: t**2 / 2 * (y != 0).sum(),
        singular_value_threshold: lambda y: t * torch.linalg.svdvals(y).sum(),
    }
    for step, cost in costs.items():
        best = step(x, t)
        for other in (x, best + 1e-3 * normal(5, 7, seed=seed + 1), 0.9 * best, torch.zeros_like(x)):
            assert cost(best) + (best - x).square().sum() / 2 <= cost(other) + (other - x).square().sum() / 2 + 1e-9


def test_control_half_the_threshold_does_not_minimise() -> None:
    """The control of the test above."""
    x = normal(5, 7, seed=0)
    cost = {
        y: 1.7 * y.abs().sum() + (y - x).square().sum() / 2 for y in (soft_threshold(x, 1.7), soft_threshold(x, 0.85))
    }
    right, wrong = cost.values()
    assert right < wrong - 0.1


@given(seeds, thresholds)
def test_singular_values_are_thresholded_and_vectors_unchanged(seed: int, t: float) -> None:
    x = normal(2, 5, 3, seed=seed)
    got = singular_value_threshold(x, t)
    torch.testing.assert_close(torch.linalg.svdvals(got), (torch.linalg.svdvals(x) - t).clamp_min(0))
    each = torch.tensor([t, t / 2], dtype=torch.float64)
    torch.testing.assert_close(singular_value_threshold(x, each)[0], got[0])


@pytest.mark.parametrize("threshold", [soft_threshold, hard_threshold])
def test_thresholding_propagates_nan(threshold: Callable[..., Tensor]) -> None:
    x = torch.tensor([math.nan, 0.05, -3.0, math.inf])
    assert threshold(x, 0.1).isnan().tolist() == [True, False, False, False]
    assert threshold(x, 0.1)[1] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_singular_values_of_non_finite_matrices_are_refused(bad: float) -> None:
    x = normal(5, 4, seed=0)
    singular_value_threshold(x, 0.1)
    x[2, 1] = bad
    with pytest.raises(InputError, match="finite"):
        singular_value_threshold(x, 0.1)
