"""Schedule, augmentation, accuracy and its interval."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from clearhead.numerics.moments import wilson_interval
from clearhead_lab.training.batches import random_changes, random_shift
from clearhead_lab.training.evaluation import measure_accuracy
from clearhead_lab.training.recipe import Recipe, learning_rate

COSINE = Recipe(epochs=2, learning_rate=1.0)


def test_the_schedule_rises_then_falls() -> None:
    factors = [learning_rate(COSINE, step, steps=23, warmup=5) for step in range(23)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5] == 1.0
    assert factors[14] == pytest.approx(0.5)
    assert all(a > b > 0 for a, b in itertools.pairwise(factors[5:]))
    assert learning_rate(COSINE, 0, steps=1, warmup=0) == 1


def test_schedules_start_and_end_at_the_rates_of_the_recipe() -> None:
    rates = {"learning_rate": 3.0, "final_rate": 1.0, "warmup_rate": 0.5}
    poly = Recipe(epochs=2, schedule="poly", power=2.0, **rates)
    steps = [learning_rate(poly, step, steps=9, warmup=5) for step in range(9)]
    assert steps == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 1 + 2 * 0.75**2, 1.5, 1 + 2 * 0.25**2])
    constant = Recipe(epochs=2, schedule="constant", **rates)
    assert [learning_rate(constant, step, steps=9, warmup=5) for step in (4, 5, 8)] == [3.0, 3.0, 3.0]
    cosine = Recipe(epochs=2, **rates)
    assert learning_rate(cosine, 4, steps=6, warmup=2) == pytest.approx(2.0)


@pytest.mark.parametrize(("step", "steps", "warmup"), [(23, 23, 5), (-1, 23, 5), (0, 5, 5), (0, 5, -1)])
def test_invalid_schedules_are_refused(step: int, steps: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= step < steps"):
        learning_rate(COSINE, step, steps=steps, warmup=warmup)


def test_every_shift_is_a_shift_and_all_occur() -> None:
    image = torch.arange(1.0, 36.0).view(1, 1, 5, 7)
    images = image + 100 * torch.arange(601.0).view(601, 1, 1, 1)
    moved = random_shift(torch.cat([images, -images], dim=1), torch.Generator().manual_seed(0), max_pixels=2)
    seen = set()
    for one, image in zip(moved, images, strict=True):
        wide = torch.nn.functional.pad(image[0], (2, 2, 2, 2))
        windows = {(y, x): wide[y : y + 5, x : x + 7] for y in range(5) for x in range(5)}
        shifts = [shift for shift, window in windows.items() if torch.equal(one[0], window)]
        assert len(shifts) == 1
        assert torch.equal(one[0], -one[1])
        seen.add(shifts[0])
    assert len(seen) == 25


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.zeros(400, 1, 7, 11)
    images[..., 3, 2] = 1
    changed = random_changes(images, torch.Generator().manual_seed(0))
    mirrored = int((changed[..., 5:].sum(dim=(1, 2, 3)) > 0).sum())
    low, high = stats.binom.interval(0.9999, 400, 0.5)
    assert low <= mirrored <= high
    again = random_changes(images, torch.Generator().manual_seed(0))
    assert torch.equal(changed, again)


class _Brightest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.training)
        assert float(images.max()) <= 1
        return images.flatten(1)


def test_accuracy_counts_correct_outputs_and_keeps_the_mode() -> None:
    images = torch.zeros(13, 1, 1, 3, dtype=torch.uint8)
    labels = torch.arange(13) % 3
    images[torch.arange(13), 0, 0, labels] = 255
    model = _Brightest().train()
    assert measure_accuracy(model, images, labels, batch_size=5).right == 13
    assert model.training
    assert model.seen == [False] * 3
    wrong = labels.clone()
    wrong[:4] = (wrong[:4] + 1) % 3
    accuracy = measure_accuracy(model, images, wrong, batch_size=5)
    assert (accuracy.right, accuracy.images, accuracy.value) == (9, 13, 9 / 13)
    assert accuracy.interval == wilson_interval(9, 13)


@given(trials=st.integers(1, 997), share=st.floats(0, 1), level=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_ends_of_wilsons_interval_have_p_value_at_the_level(trials: int, share: float, level: float) -> None:
    successes = round(share * trials)
    interval = wilson_interval(successes, trials, level=level)
    theirs = stats.binomtest(successes, trials).proportion_ci(level, method="wilson")
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0 <= interval.low <= successes / trials <= interval.high <= 1
    z = stats.norm.ppf(0.5 + level / 2)
    for p in (interval.low, interval.high):
        if 0 < p < 1:
            assert abs(successes / trials - p) == pytest.approx(z * math.sqrt(p * (1 - p) / trials), abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_invalid_proportions_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= successes <= trials"):
        wilson_interval(successes, trials)
