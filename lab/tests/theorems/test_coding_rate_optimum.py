"""Maxima of the rate reduction: gradient ascent finds the predicted ones."""

import math

import pytest
import torch
from torch import Tensor

from clearhead.numerics.coding_rate import rate_reduction
from clearhead_lab.theorems.coding_rate.optimum import (
    ascend,
    critical_ratio,
    isotropic_gain,
    isotropic_reduction,
    largest_penalty,
    rank_constant,
    regularised_singular_values,
)
from tests.numerics.test_logdet import normal

SIZES, WIDTH, EPS = (20, 20, 20), 12, math.sqrt(0.5)


def reduction(z: Tensor, eps: float) -> float:
    labels = torch.arange(len(z)).repeat_interleave(z.shape[1])
    return float(rate_reduction(z.flatten(0, 1), labels=labels, eps=eps).value)


def planted(ranks: tuple[int, ...], *, n: int, width: int) -> Tensor:
    """Return orthogonal isotropic classes of these ranks, with |Z_k|^2 = n."""
    z, start = torch.zeros(len(ranks), n, width, dtype=torch.float64), 0
    for k, rank in enumerate(ranks):
        z[k, :, start : start + rank] = math.sqrt(n / rank) * torch.linalg.qr(normal(n, rank, seed=k))[0]
        start += rank
    return z


@pytest.mark.parametrize(("share_of_bound", "published"), [(0.2, 5.26231), (0.8, 1.97706)])
def test_penalised_maxima_have_the_predicted_singular_values(share_of_bound: float, published: float) -> None:
    penalty = share_of_bound * largest_penalty(SIZES, width=WIDTH, eps=EPS)
    predicted = regularised_singular_values(SIZES, width=WIDTH, eps=EPS, penalty=penalty)
    assert predicted == pytest.approx([published] * 3, abs=6e-6)
    ranks = set()
    for seed in range(2):
        z = ascend(normal(3, 20, WIDTH, seed=seed), eps=EPS, penalty=penalty)
        values = torch.linalg.svdvals(z)
        nonzero = values > published / 2
        assert nonzero.sum(dim=-1).min() > 0
        assert (values[nonzero] - published).abs().max() < 1e-4
        assert values[~nonzero].max() < 1e-4
        for i in range(3):
            for j in range(i):
                assert (z[i] @ z[j].T).abs().max() < 1e-4
        ranks.add(tuple(nonzero.sum(dim=-1).tolist()))
    assert len(ranks) > 1  # ranks are not determined


def test_unequal_classes_have_different_singular_values() -> None:
    """At each, the gain of one direction has zero derivative and negative second derivative."""
    sizes, penalty = (7, 13, 29), 0.5 * largest_penalty((7, 13, 29), width=WIDTH, eps=EPS)
    singular_values = regularised_singular_values(sizes, width=WIDTH, eps=EPS, penalty=penalty)
    assert len(set(singular_values)) == 3
    for size, value in zip(sizes, singular_values, strict=True):
        alpha, alpha_k = WIDTH / (sum(sizes) * EPS**2), WIDTH / (size * EPS**2)
        s = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        gain = (torch.log1p(alpha * s**2) - size / sum(sizes) * torch.log1p(alpha_k * s**2) - penalty * s**2) / 2
        (slope,) = torch.autograd.grad(gain, s, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, s)
        assert abs(slope.item()) < 1e-12
        assert curvature < 0


def test_penalties_beyond_the_bound_are_refused() -> None:
    bound = largest_penalty(SIZES, width=WIDTH, eps=EPS)
    assert regularised_singular_values(SIZES, width=WIDTH, eps=EPS, penalty=bound)[0] > 0.5
    for wrong in (1.001 * bound, 0.0):
        with pytest.raises(ValueError, match="at most"):
            regularised_singular_values(SIZES, width=WIDTH, eps=EPS, penalty=wrong)


def test_unit_tokens_ascend_to_orthogonal_isotropic_classes() -> None:
    expected = isotropic_reduction((4, 4, 4), SIZES, width=12, eps=0.5)
    assert expected == pytest.approx(4.5267, abs=5e-5)
    assert reduction(planted((4, 4, 4), n=20, width=12), 0.5) == pytest.approx(expected, rel=1e-12)
    maximum = ascend(normal(3, 20, 12, seed=1), eps=0.5)
    assert reduction(maximum, 0.5) == pytest.approx(expected, rel=1e-9)
    assert reduction(torch.nn.functional.normalize(normal(3, 20, 12), dim=-1), 0.5) < 1


def test_gains_are_rate_reductions_of_planted_classes() -> None:
    for ranks in ((3, 3, 4), (4, 4, 4), (2, 5, 3)):
        for eps in (0.5, 1.0):
            expected = isotropic_reduction(ranks, SIZES, width=12, eps=eps)
            assert reduction(planted(ranks, n=20, width=12), eps) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="at most the width 12"):
        isotropic_reduction((5, 5, 5), SIZES, width=12, eps=1.0)


def test_lower_ranks_are_better_at_a_large_eps() -> None:
    low, full = (isotropic_reduction(ranks, SIZES, width=12, eps=1.0) for ranks in ((3, 3, 4), (4, 4, 4)))
    assert low == pytest.approx(1.3946, abs=5e-5)
    assert full == pytest.approx(1.3863, abs=5e-5)
    low, full = (isotropic_reduction(ranks, SIZES, width=12, eps=0.5) for ranks in ((3, 3, 4), (4, 4, 4)))
    assert full > low


@pytest.mark.parametrize(
    ("share", "ratio", "constant"),
    [
        (1 / 2, 1.535, 0.21),
        (1 / 3, 1.261, 0.21),
        (1 / 5, 0.987, 0.205),
        (1 / 10, 0.712, 0.197),
        (1 / 100, 0.249, 0.162),
    ],
)
def test_the_rank_constant_is_sharp(share: float, ratio: float, constant: float) -> None:
    """One more direction raises the gain on one side of it, and lowers it on the other."""
    assert critical_ratio(share) == pytest.approx(ratio, abs=6e-4)
    assert rank_constant(share) == pytest.approx(constant, abs=3e-3)
    width, rank = 97, 5.0
    eps = (rank_constant(share) * share * (width / rank) ** 2) ** 0.25

    def slope(error: float) -> float:
        more, less = (isotropic_gain(r, share=share, width=width, eps=error) for r in (rank + 1e-4, rank - 1e-4))
        return more - less

    assert slope(0.99 * eps) > 0 > slope(1.01 * eps)


def test_a_share_of_zero_or_one_is_refused() -> None:
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            critical_ratio(share)
