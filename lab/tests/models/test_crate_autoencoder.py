"""CRATE-MAE: published sizes, masks and reconstruction, saving, and learning digits."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead._capture import capture
from clearhead.loading.model import load_model
from clearhead.numerics.precision import tolerance
from clearhead.shapes import ShapeError
from clearhead_lab.data.image_sets import digits
from clearhead_lab.models.crate import CRATE_SIZES
from clearhead_lab.models.crate_autoencoder import (
    CrateAutoencoder,
    CrateAutoencoderConfig,
    random_mask,
    sinusoidal_positions,
)
from clearhead_lab.models.native import save_native
from lab.tests.models.released_crate import randomised
from tests.once import once

CONFIG = CrateAutoencoderConfig(
    image_size=15, patch_size=3, channels=2, width=28, layers=3, heads=2, decoder_layers=2,
    pixel_mean=(0.3, 0.6), pixel_spread=(0.2, 0.4),
)  # fmt: skip


def _model() -> CrateAutoencoder:
    return CrateAutoencoder(CONFIG, generator=torch.Generator().manual_seed(0)).eval()


def _images() -> Tensor:
    return torch.rand(5, 2, 15, 15, generator=torch.Generator().manual_seed(1))


def _mask() -> Tensor:
    return random_mask(5, 25, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("size", "published", "whole"), [("small", 25.4, 25_405_824), ("base", 44.6, 44_638_464)])
def test_the_published_numbers_of_parameters_include_unused_ones(size: str, published: float, whole: int) -> None:
    """Unused parameters: a map between encoder and decoder, and two tables of fixed positions."""
    with torch.device("meta"):
        published_size = {"image_size": 224, "patch_size": 16, "channels": 3, **CRATE_SIZES[size]}
        model = CrateAutoencoder(CrateAutoencoderConfig(**published_size))
    width, tokens = model.config.width, model.config.tokens
    unused = width**2 + width + 2 * tokens * width
    assert sum(p.numel() for p in model.parameters()) + unused == whole
    assert round(whole / 1e6, 1) == published
    assert model.config.penalty == 0.5


def test_outputs_match_the_definition() -> None:
    model, images, masked = randomised(_model()).double(), _images().double(), _mask()
    with torch.no_grad():
        pixels = model.pixels(images)
        cut = [pixels[:, :, y : y + 3, x : x + 3].flatten(1) for y in range(0, 15, 3) for x in range(0, 15, 3)]
        shown = torch.stack([model.embedding(patch) for patch in cut], dim=1)
        for i, j in masked.nonzero().tolist():
            shown[i, j] = model.mask_token[0, 0]
        x = torch.cat([model.class_token.expand(5, 1, -1), shown], dim=1) + model.positions
        for block in model.blocks:
            x = x + block.attention(block.attention_norm(x))
            z, D = block.sparse_norm(x), block.sparse.dictionary
            x = (z + 0.1 * (z - z @ D.mT) @ D - 0.1 * 0.5).clamp_min(0)
        x = model.norm(x)
        for block in model.decoder:
            y = block.sparse_norm(x) @ block.dictionary.mT
            x = y - block.attention(block.attention_norm(y))
        want = model.head(model.decoder_norm(x))[:, 1:]
        error = (model(images, masked) - want).norm() / want.norm()
        target = torch.stack(cut, dim=1)
        loss = (want - target)[masked].square().mean()
        assert abs(model.loss(images, masked) - loss) <= tolerance(torch.float64) * loss
        assert abs(model.loss(images, masked) - (want - target).square().mean()) > 1e-6 * loss
    assert error <= tolerance(torch.float64, terms=256)


def test_outputs_depend_on_visible_pixels_only() -> None:
    model, images, masked = randomised(_model()), _images(), _mask()
    region = masked.reshape(5, 1, 5, 5).repeat_interleave(3, dim=2).repeat_interleave(3, dim=3)
    with torch.no_grad():
        want = model(images, masked)
        assert torch.equal(model(torch.where(region, 1 - images, images), masked), want)
        assert not torch.equal(model(torch.where(region, images, 1 - images), masked), want)
        assert not torch.equal(model(images), want)
        assert torch.equal(model(images), model(images, torch.zeros_like(masked)))


def test_masks_hide_the_same_number_of_patches_and_differ_between_calls() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = (random_mask(31, 16, generator=generator) for _ in range(2))
    assert set(one.sum(dim=1).tolist()) == {12}
    assert not torch.equal(one, two)
    assert (one.float().mean(dim=0) - 0.75).abs().max() < 0.3
    assert random_mask(3, 7, share=0.99).sum(dim=1).tolist() == [6, 6, 6]
    with pytest.raises(ValueError, match="share between 0 and 1; got 1"):
        random_mask(3, 7, share=1.0)


def test_position_codes_differ_and_have_equal_length() -> None:
    codes = sinusoidal_positions(5, 28).double()
    assert codes.shape == (26, 28)
    assert not codes[0].any()
    torch.testing.assert_close(codes[1:].square().sum(dim=1), torch.full((25,), 14.0).double())
    assert torch.cdist(codes, codes).fill_diagonal_(1).min() > 0.1
    down, right = codes[1 + 5] @ codes[1], codes[1 + 1] @ codes[1]
    assert abs(down - right) < 1e-6  # steps in both directions have the same length
    far = codes[1 + 10] @ codes[1]
    assert far < down


def test_a_saved_model_is_restored_bit_for_bit(tmp_path: Path) -> None:
    model = _model()
    save_native(model, tmp_path)
    loaded = load_model(str(tmp_path), max_tokens=256)
    assert loaded.model.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded.model(_images(), _mask()), model(_images(), _mask()))
        assert torch.equal(loaded.draw_baseline(0)(_images()), model(_images()))
        assert not torch.equal(loaded.draw_baseline(1)(_images()), model(_images()))


def test_attention_is_captured_in_encoder_and_decoder() -> None:
    model = _model()
    with torch.no_grad(), capture(model) as captured:
        while_capturing = model(_images())
    names = [f"blocks.{i}.attention" for i in range(3)] + [f"decoder.{i}.attention" for i in range(2)]
    assert [heads.name for heads in captured.heads] == names
    with torch.no_grad():
        assert torch.equal(model(_images()), while_capturing)


@once
def test_training_learns_to_reconstruct_hidden_patches_of_digits() -> None:
    images = digits().train_images / 255
    config = CrateAutoencoderConfig(width=32, layers=1, heads=4, image_size=8, patch_size=2, channels=1)
    model = CrateAutoencoder(config, generator=torch.Generator().manual_seed(0))
    optimiser, generator = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.Generator().manual_seed(1)
    losses = []
    for _ in range(60):
        some = images[torch.randint(len(images), (32,), generator=generator)]
        loss = model.loss(some, random_mask(32, 16, generator=generator))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    constant = float(model.targets(images).var())  # the loss of the best constant prediction
    assert losses[0] > constant
    assert sum(losses[-10:]) / 10 < 0.75 * constant


def test_invalid_arguments_raise_an_error() -> None:
    for change in ({"width": 30}, {"decoder_layers": -1}, {"patch_size": 4}, {"penalty": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            dataclasses.replace(CONFIG, **change)
    assert dataclasses.replace(CONFIG, decoder_layers=0).decoder_layers == 3
    with pytest.raises(ShapeError, match=r"expected masked \(5, 25\); got masked \(5, 24\)"):
        _model()(_images(), _mask()[:, :24])
    with pytest.raises(ValueError, match="masked is False everywhere"):
        _model().loss(_images(), torch.zeros(5, 25).bool())
