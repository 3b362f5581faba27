"""Attention maps as masks: what a map is, which patches it keeps, and how a mask is scored."""

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.heads import Heads
from clearhead.operators import softmax_attention
from clearhead.shapes import ShapeError
from clearhead_lab.experiments.crate.attention_maps import (
    attention_maps,
    best_head,
    centre_prior,
    foreground,
    overlap,
    upsampled,
)


def random_heads(*, n: int = 16, seed: int = 0, **others) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 5, generator=generator) for _ in range(3))
    return Heads(layer=0, name="", q=q, k=k, v=v, out=softmax_attention(q, k, v), scale=5**-0.5, **others)


def test_a_map_holds_the_weights_of_the_token_patch_by_patch() -> None:
    heads = random_heads()
    maps = attention_maps(heads, grid=(3, 5), token=2)
    one_hot = torch.eye(16).expand(2, 3, 16, 16)
    weights = softmax_attention(heads.q, heads.k, one_hot, scale=heads.scale)  # of every token to every token
    for y in range(3):
        for x in range(5):
            torch.testing.assert_close(maps[..., y, x].float(), weights[:, :, 2, 1 + 5 * y + x])
    assert not torch.allclose(attention_maps(heads, grid=(3, 5), token=1), maps)


def test_a_mask_hides_patches() -> None:
    mask = torch.ones(2, 1, 1, 16, dtype=torch.bool)
    mask[0, ..., 4] = False
    maps = attention_maps(random_heads(mask=mask), grid=(3, 5)).flatten(-2)
    assert (maps[0, :, 3] == 0).all()
    assert (maps[1, :, 3] > 0).all()


def test_a_grid_of_another_size_and_a_bias_are_refused() -> None:
    with pytest.raises(ShapeError, match="17 in all; got 16"):
        attention_maps(random_heads(), grid=(4, 4))
    with pytest.raises(ValueError, match="without biases"):
        attention_maps(random_heads(bias=torch.zeros(1, 1, 16, 16)), grid=(3, 5))


def test_the_fewest_patches_that_hold_the_mass_are_selected() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(7, 3, 5, generator=generator, dtype=torch.float64) ** 3
    for mass in (0.1, 0.6, 0.95, 1.0):
        selected = foreground(maps, mass=mass)
        held = (maps * selected).sum(dim=(-2, -1)) / maps.sum(dim=(-2, -1))
        assert (held >= mass - 1e-12).all()
        smallest = torch.where(selected, maps, torch.inf).amin(dim=(-2, -1))
        assert (maps.masked_fill(selected, 0).amax(dim=(-2, -1)) <= smallest).all()
        without = held - smallest / maps.sum(dim=(-2, -1))
        assert (without < mass).all()


@pytest.mark.parametrize(
    ("weights", "mass", "selected"), [((5, 3, 1, 1), 0.5, 1), ((5, 3, 1, 1), 0.6, 2), ((0, 0, 0, 4), 1.0, 1)]
)
def test_the_mass_is_that_of_the_map(weights: tuple[int, ...], mass: float, selected: int) -> None:
    assert int(foreground(torch.tensor(weights, dtype=torch.float64).reshape(2, 2), mass=mass).sum()) == selected


def test_invalid_shares_and_weights_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected 0 < mass <= 1; got 1\.5"):
        foreground(torch.ones(2, 2), mass=1.5)
    with pytest.raises(ValueError, match="nonnegative"):
        foreground(-torch.ones(2, 2))


def test_every_patch_covers_its_own_pixels() -> None:
    patches = torch.zeros(3, 5, dtype=torch.bool)
    patches[1, 4] = True
    pixels = upsampled(patches, (6, 15))
    assert pixels[2:4, 12:15].all()
    assert int(pixels.sum()) == 6
    with pytest.raises(ShapeError, match="3 x 5 patches tile; got 7 x 15"):
        upsampled(patches, (7, 15))


def masks(*rows: str) -> Tensor:
    return torch.tensor([[[c == "x" for c in line] for line in row.split("/")] for row in rows])


def test_overlap_is_intersection_over_union_of_both_classes() -> None:
    truth = masks("xx./...", "xx./...", ".../...", "xxx/xxx")
    predicted = masks("x../...", "..x/xxx", ".../...", "xxx/xxx")
    scored = overlap(predicted, truth)
    np.testing.assert_allclose(scored.object, [1 / 2, 0, np.nan, 1])
    np.testing.assert_allclose(scored.mean, [(1 / 2 + 4 / 5) / 2, 0, 1, 1])
    border = masks("x.x/xxx", "xxx/xxx", "xxx/xxx", "xxx/xxx")
    np.testing.assert_allclose(overlap(predicted, truth, counted=border).object[0], 1)


def test_the_middle_is_darkest_in_the_middle_and_the_best_head_has_the_highest_mean() -> None:
    blob = centre_prior((5, 7))
    assert int(blob.argmax()) == 2 * 7 + 3
    torch.testing.assert_close(blob, blob.flip(0).flip(1))
    assert best_head(np.array([[0.1, 0.5, 0.4], [0.2, np.nan, 0.5]])) == 1
