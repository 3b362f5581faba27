"""Corruptions change pixels as defined, severities are ordered, and only the seed brings randomness."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.shapes import ShapeError
from clearhead_lab.data.image_sets import digits
from clearhead_lab.robustness.corruptions import (
    CORRUPTIONS,
    NOISES,
    SEVERITIES,
    Corruption,
    SweepResult,
    corrupt,
    sweep,
)

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "robustness.md"
BY_NAME = {corruption.name: corruption for corruption in CORRUPTIONS}
RANDOM = {*(noise.name for noise in NOISES), "occlusion"}
ROUNDING = tolerance(torch.float32)


def _pixels(n: int = 19, seed: int = 0) -> Tensor:
    """Images with structure: waves of several lengths, two channels."""
    generator = torch.Generator().manual_seed(seed)
    phase = 6 * torch.rand(n, 2, 2, 1, 1, generator=generator)
    position = torch.linspace(0, 6, 29)
    waves = torch.sin(position[:, None] + phase[:, :, 0]) * torch.sin(2 * position + phase[:, :, 1])
    return 0.5 + 0.45 * waves


def _apply(name: str, pixels: Tensor, severity: int = 3, seed: int = 0) -> Tensor:
    return BY_NAME[name](pixels, severity=severity, generator=torch.Generator().manual_seed(seed))


def _amount(name: str, severity: int = 3) -> float:
    return BY_NAME[name].amounts[severity - 1]


@pytest.mark.parametrize("name", BY_NAME)
def test_corrupted_images_are_valid_and_inputs_are_unchanged(name: str) -> None:
    pixels = _pixels()
    before = pixels.clone()
    for severity in SEVERITIES:
        worse = _apply(name, pixels, severity)
        assert (worse.shape, worse.dtype) == (pixels.shape, pixels.dtype)
        assert 0 <= worse.min() <= worse.max() <= 1
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("name", BY_NAME)
def test_each_severity_is_further_from_the_image_than_the_one_before(name: str) -> None:
    for pixels in (_pixels(), digits().test_images.float() / 255):
        away = [float((_apply(name, pixels, severity) - pixels).square().mean()) for severity in SEVERITIES]
        assert away == sorted(away)
        assert 0 < away[0] < away[-1]


@pytest.mark.parametrize("name", BY_NAME)
def test_randomness_depends_only_on_the_seed(name: str) -> None:
    pixels = _pixels()
    torch.manual_seed(1)
    first = _apply(name, pixels)
    torch.manual_seed(2)
    assert torch.equal(first, _apply(name, pixels))
    assert torch.equal(first, _apply(name, pixels, seed=1)) == (name not in RANDOM)


def test_the_noises_have_their_moments() -> None:
    grey = torch.full((23, 1, 31, 37), 0.5)
    count = grey.numel()
    # Five standard errors of a mean and of a standard deviation; 0.05 and 12 photons hardly leave the range.
    for name, severity, spread in (
        ("gaussian noise", 1, _amount("gaussian noise", 1)),
        ("shot noise", 1, math.sqrt(0.5 / _amount("shot noise", 1))),
    ):
        noise = _apply(name, grey, severity) - grey
        assert abs(float(noise.mean())) <= 5 * spread / math.sqrt(count)
        assert abs(float(noise.std()) - spread) <= 5 * spread / math.sqrt(2 * count)
    share = _amount("impulse noise")
    struck = _apply("impulse noise", grey)
    assert set(struck.unique().tolist()) == {0.0, 0.5, 1.0}
    for value in (0.0, 1.0):
        error = math.sqrt(share / 2 / count)
        assert abs(float((struck == value).float().mean()) - share / 2) <= 5 * error


def test_black_has_no_shot_noise() -> None:
    black = torch.zeros(3, 1, 5, 7)
    assert not _apply("shot noise", black).any()
    assert _apply("gaussian noise", black).any()


def test_blur_is_the_gaussian_mean_of_its_surroundings() -> None:
    spread = _amount("blur", 2) * 29
    point = torch.zeros(1, 2, 29, 29, dtype=torch.float64)
    point[..., 14, 14] = 1
    radius = math.ceil(3 * spread)
    place = torch.arange(29, dtype=torch.float64) - 14
    window = torch.exp(-(place**2) / (2 * spread**2)) * (place.abs() <= radius)
    window /= window.sum()
    expected = window[:, None] * window
    assert (_apply("blur", point, 2) - expected).abs().max() <= tolerance(torch.float64)
    even = torch.full((2, 1, 11, 13), 0.3)
    assert (_apply("blur", even, 5) - even).abs().max() <= ROUNDING


def test_contrast_and_brightness_are_straight_lines() -> None:
    pixels = _pixels()
    flat = _apply("contrast", pixels)
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    assert ((flat - mean) - _amount("contrast") * (pixels - mean)).abs().max() <= ROUNDING
    assert (_apply("brightness", pixels) - (pixels + _amount("brightness")).clamp(max=1)).abs().max() <= ROUNDING


def test_pixelate_keeps_means_of_a_coarser_grid() -> None:
    pixels = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    coarse = _apply("pixelate", pixels, 5)
    assert round(_amount("pixelate", 5) * 28) == 7
    blocks = pixels.reshape(5, 1, 7, 4, 7, 4).mean(dim=(3, 5))
    assert (coarse[..., ::4, ::4] - blocks).abs().max() <= ROUNDING
    assert (coarse[..., ::4, ::4] - coarse[..., 3::4, 3::4]).abs().max() <= ROUNDING
    for severity in SEVERITIES:  # a mean of equal ones is the same again, also where cells are of two sizes
        once = _apply("pixelate", pixels, severity)
        assert (_apply("pixelate", once, severity) - once).abs().max() <= ROUNDING


def test_occlusion_hides_one_square_of_each_image_and_nothing_else() -> None:
    pixels = torch.ones(41, 2, 17, 23)
    for severity in SEVERITIES:
        side = round(_amount("occlusion", severity) * 17)
        hidden = _apply("occlusion", pixels, severity) == 0.5
        assert torch.equal(hidden.sum(dim=(1, 2, 3)), torch.full((41,), 2 * side**2))
        assert torch.equal(hidden.any(dim=-1).sum(dim=-1), torch.full((41, 2), side))
    assert len({tuple(row) for row in hidden[:, 0].flatten(1).tolist()}) > 1


def test_invalid_images_and_severities_are_refused() -> None:
    corruption, generator = CORRUPTIONS[0], torch.Generator()
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity must be from 1 to 5; got {severity}"):
            corruption(_pixels(), severity=severity, generator=generator)
    with pytest.raises(ValueError, match=r"expected pixels from 0 to 1; got torch.float32 from .* to 255"):
        corruption(255 * _pixels().ceil(), severity=1, generator=generator)
    with pytest.raises(ValueError, match=r"expected images of dtype uint8; got torch.float32"):
        corrupt(_pixels(), corruption, severity=1, seed=0)
    with pytest.raises(ShapeError, match="expected images"):
        corruption(torch.zeros(0, 1, 5, 5), severity=1, generator=generator)


def _bytes(n: int = 13) -> Tensor:
    return (255 * _pixels(n)).round().to(torch.uint8)


def test_byte_images_give_byte_images_by_seed() -> None:
    still = Corruption(name="still", amounts=(1.0, 2.0, 3.0, 4.0, 5.0), apply=lambda pixels, amount, generator: pixels)
    assert torch.equal(corrupt(_bytes(), still, severity=2, seed=3), _bytes())
    noise = BY_NAME["gaussian noise"]
    first = corrupt(_bytes(), noise, severity=2, seed=3)
    assert torch.equal(first, corrupt(_bytes(), noise, severity=2, seed=3))
    for other in (
        corrupt(_bytes(), noise, severity=2, seed=4),
        corrupt(_bytes(), dataclasses.replace(noise, name="other"), severity=2, seed=3),
    ):
        assert not torch.equal(first, other)
    even = dataclasses.replace(noise, amounts=(0.1,) * 5)
    assert not torch.equal(*(corrupt(_bytes(), even, severity=severity, seed=3) for severity in (1, 2)))


def test_bytes_are_rounded_to_the_nearest() -> None:
    lighter = dataclasses.replace(BY_NAME["brightness"], amounts=(0.6 / 255,) * 5)
    assert torch.equal(corrupt(_bytes(), lighter, severity=1, seed=0), _bytes() + 1)


def test_a_sweep_measures_each_corruption_at_each_severity() -> None:
    images, reported = _bytes(), []

    def darkness(shown: Tensor) -> float:
        return 1 - float(shown.float().mean()) / 255

    swept = sweep(images, darkness, seed=5, progress=reported.append)
    assert reported == [one.corruption for one in swept] == [corruption.name for corruption in CORRUPTIONS]
    brighter = next(one for one in swept if one.corruption == "brightness")
    assert list(brighter.values) == sorted(brighter.values, reverse=True)
    shown = corrupt(images, BY_NAME["impulse noise"], severity=4, seed=5)
    assert next(one for one in swept if one.corruption == "impulse noise").values[3] == darkness(shown)
    assert SweepResult(corruption="x", values=(0.2, 0.4)).mean == pytest.approx(0.3)


def test_the_page_states_the_constants() -> None:
    page = PAGE.read_text()
    for corruption in CORRUPTIONS:
        assert f"| {corruption.name} | {', '.join(f'{amount:g}' for amount in corruption.amounts)} |" in page
