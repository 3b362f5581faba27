"""The three principles, measured on features that meet them and on nulls that cannot."""

import math

import pytest
import torch

from clearhead_lab.theorems.coding_rate.optimum import ascend
from clearhead_lab.theorems.coding_rate.principles import Principles, principles, principles_with_nulls
from lab.tests.theorems.test_coding_rate_optimum import planted
from tests.numerics.test_logdet import normal

LABELS = torch.arange(3).repeat_interleave(40)


def features_by_ascent() -> torch.Tensor:
    """Return the best of a few ascents, because there are lower maxima of other ranks."""
    maxima = [ascend(normal(3, 40, 12, seed=seed), eps=0.5).flatten(0, 1) for seed in range(3)]
    return max(maxima, key=lambda z: principles(z, LABELS).reduction)


def test_the_optimum_meets_all_three_principles_and_the_nulls_do_not() -> None:
    measured = principles_with_nulls(features_by_ascent(), LABELS)
    result = measured.features
    assert result.reduction == pytest.approx(4.5267, abs=5e-5)
    assert result.overlap < 1e-9
    assert result.largest_cosine < 1e-4
    assert result.ranks == (4, 4, 4)
    assert result.directions == 4
    assert max(result.outside) < 1e-9
    assert result.effective_ranks == pytest.approx([4] * 3, abs=1e-6)
    assert result.flatness == pytest.approx([1] * 3, abs=1e-6)
    assert result.rate_fraction == pytest.approx(1, abs=1e-9)
    assert result.rates == pytest.approx([2 * math.log(13)] * 3, abs=1e-6)
    for null in (measured.random, measured.shuffled):
        assert 0.2 < null.reduction < 0.6
        assert 0.85 < null.overlap < 0.95
        assert min(null.outside) > 0.3
    assert measured.collapsed.reduction == pytest.approx(2.304, abs=5e-4)
    assert measured.collapsed.ranks == (1, 1, 1)
    assert measured.collapsed.rate_fraction < 0.7


def test_each_measure_follows_its_definition() -> None:
    """Two classes that share one direction, with unequal variances."""
    z = torch.zeros(8, 5, dtype=torch.float64)
    z[:4, 0], z[:4, 1] = 3 * torch.tensor([1, -1, 1, -1]), torch.tensor([1, 1, -1, -1])
    z[4:, 1], z[4:, 2] = torch.tensor([1, -1, 1, -1]), torch.tensor([1, 1, -1, -1])
    result = principles(z, torch.tensor([3] * 4 + [7] * 4), directions=1)
    assert result.ranks == (2, 2)
    assert result.overlap == pytest.approx(1 / 2)
    assert result.largest_cosine == pytest.approx(1)
    assert result.outside == pytest.approx([0.1, 0.5])
    assert result.effective_ranks == pytest.approx([math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1)), 2])
    assert result.flatness == pytest.approx([result.effective_ranks[0] / 2, 1])


def test_rate_fraction_does_not_depend_on_the_size_of_features() -> None:
    spread = planted((4, 4, 4), n=40, width=12).flatten(0, 1)
    for size in (1.0, 5.0):
        assert principles(size * spread, LABELS).rate_fraction == pytest.approx(1)
    assert principles(spread, LABELS, eps=0.1).reduction > principles(spread, LABELS).reduction + 1


def test_nulls_depend_on_the_seed_only() -> None:
    z = normal(120, 12)

    def random(seed: int) -> Principles:
        return principles_with_nulls(z, LABELS, seed=seed).random

    assert random(3) == random(3)
    assert random(3) != random(4)


def test_fewer_than_two_classes_and_zero_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two classes"):
        principles(normal(5, 3), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="a nonzero feature in every class"):
        principles(torch.cat([normal(5, 3), torch.zeros(2, 3)]), torch.tensor([0] * 5 + [1] * 2))
