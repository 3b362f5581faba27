"""Thresholded attention denoises as its theorem says, and beyond its sizes it does not."""

import pytest
import torch

from clearhead.theories.coding_rate.denoising import draw_noisy_tokens, growth, middle_threshold, predicted_growth


@pytest.mark.parametrize(("p", "want"), [(32, 1.3673), (64, 1.3750)])
def test_the_first_layer_grows_as_predicted(p: int, want: float) -> None:
    drawn = draw_noisy_tokens(n=256, k=4, p=p, noise=0.2, seed=3)
    assert predicted_growth(256, p) == pytest.approx(want, abs=5e-5)
    assert growth(drawn, layers=1)[0].tolist() == pytest.approx([predicted_growth(256, p)] * 4, rel=1e-12)


def test_where_the_theorem_ends() -> None:
    """By the third layer, at more noise, and without the threshold."""
    drawn = draw_noisy_tokens(n=256, k=4, p=64, noise=0.2, seed=3)
    third = growth(drawn, layers=3)[2]
    assert third.max() < 1
    noisy = growth(draw_noisy_tokens(n=256, k=4, p=64, noise=0.5, seed=3), layers=1)[0]
    assert (noisy - 1).abs().max() < 0.02
    plain = growth(drawn, layers=2, plain=True)
    assert 1.05 < plain[0].min() < plain[0].max() < 1.25
    assert plain[1].max() < 1


def test_noisy_tokens_are_as_said() -> None:
    drawn = draw_noisy_tokens(n=1009, k=3, p=5, noise=0.2, seed=0)
    inner = (drawn.tokens @ drawn.bases).square().mean(dim=-1)
    own = torch.nn.functional.one_hot(drawn.own, 3).T.bool()
    assert float(inner[own].mean()) == pytest.approx(1, abs=0.1)
    assert float(inner[~own].mean()) == pytest.approx(0.04, abs=0.01)
    assert 0.5 < middle_threshold(256, 32) < 1
