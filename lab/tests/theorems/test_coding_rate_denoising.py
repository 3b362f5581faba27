"""Thresholded attention denoises as the theorem predicts, and not beyond its conditions."""

import pytest
import torch

from clearhead_lab.theorems.coding_rate.denoising import draw_noisy_tokens, growth, middle_threshold, predicted_growth


@pytest.mark.parametrize(("p", "expected"), [(32, 1.3673), (64, 1.3750)])
def test_the_first_layer_multiplies_ratios_as_predicted(p: int, expected: float) -> None:
    noisy = draw_noisy_tokens(n=256, k=4, p=p, noise=0.2, seed=3)
    assert predicted_growth(256, p) == pytest.approx(expected, abs=5e-5)
    assert growth(noisy, layers=1)[0].tolist() == pytest.approx([predicted_growth(256, p)] * 4, rel=1e-12)


def test_the_theorem_fails_in_the_third_layer_and_at_more_noise() -> None:
    noisy = draw_noisy_tokens(n=256, k=4, p=64, noise=0.2, seed=3)
    third = growth(noisy, layers=3)[2]
    assert third.max() < 1
    at_more_noise = growth(draw_noisy_tokens(n=256, k=4, p=64, noise=0.5, seed=3), layers=1)[0]
    assert (at_more_noise - 1).abs().max() < 0.02


def test_noisy_tokens_have_the_stated_variances() -> None:
    noisy = draw_noisy_tokens(n=1009, k=3, p=5, noise=0.2, seed=0)
    energy = (noisy.tokens @ noisy.bases).square().mean(dim=-1)
    inside = torch.nn.functional.one_hot(noisy.subspace, 3).T.bool()
    assert float(energy[inside].mean()) == pytest.approx(1, abs=0.1)
    assert float(energy[~inside].mean()) == pytest.approx(0.04, abs=0.01)
    assert 0.5 < middle_threshold(256, 32) < 1
