"""Encoded images as tensors."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.data.decoding import CorruptImageError, decode_mask, decode_pixels
from clearhead.errors import InputError

Image = pytest.importorskip("PIL.Image", reason="pillow decodes images")
Y, X = 5, 7


def _encoded(values: np.ndarray, kind: str, mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(values)
    (image if mode is None else image.convert(mode)).save(buffer, kind)
    return buffer.getvalue()


COLOURS = np.random.default_rng(0).integers(0, 256, (Y, X, 3), dtype=np.uint8)
GREY = COLOURS[..., 0]


def test_pixels_are_channels_rows_columns(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_encoded(COLOURS, "PNG"))
    expected = torch.from_numpy(COLOURS.transpose(2, 0, 1).copy())
    assert torch.equal(decode_pixels(tmp_path / "a.png"), expected)
    assert torch.equal(decode_pixels(_encoded(COLOURS, "PNG")), expected)


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "L", "P", "LA", "1"])
def test_every_mode_becomes_three_channels(mode: str) -> None:
    pixels = decode_pixels(_encoded(COLOURS, "TIFF" if mode == "CMYK" else "PNG", mode))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, Y, X))


def test_a_mask_is_one_byte_per_pixel() -> None:
    assert torch.equal(decode_mask(_encoded(GREY, "PNG")), torch.from_numpy(GREY))
    palette = Image.fromarray(GREY % 4).convert("P")
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG")
    assert torch.equal(decode_mask(buffer.getvalue()), torch.from_numpy(GREY % 4))
    with pytest.raises(CorruptImageError, match="the mask 'm' has mode RGB; expected one byte per pixel"):
        decode_mask(_encoded(COLOURS, "PNG"), name="m")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PPM"])
def test_damaged_bytes_raise_one_line_or_decode(kind: str) -> None:
    """Cut every file at many lengths and change bytes: no other exception than ours, and each lost pixel is noticed."""
    whole = _encoded(np.random.default_rng(1).integers(0, 256, (19, 23, 3), dtype=np.uint8), kind)
    random = np.random.default_rng(2)
    for length in random.integers(0, len(whole) * 9 // 10, 40):
        with pytest.raises(CorruptImageError, match="cannot read the image spoiled: ") as error:
            decode_pixels(whole[:length], name="spoiled")
        assert "\n" not in str(error.value)
    for position in random.integers(0, 60, 60):
        changed = bytearray(whole)
        changed[position] ^= int(random.integers(1, 256))
        try:
            assert decode_pixels(bytes(changed)).shape[0] == 3
        except CorruptImageError as error:
            assert "remove it or convert it" in str(error)  # noqa: PT017


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (7, 5)).save(tmp_path / "a.png")
    monkeypatch.setattr("clearhead.data.decoding.MAX_PIXELS", 34)
    with pytest.raises(CorruptImageError, match="more than 34 pixels"):
        decode_pixels(tmp_path / "a.png")


def test_a_missing_file_is_not_corrupt(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jpg does not exist; unpack or copy the whole set again") as error:
        decode_pixels(tmp_path / "a.jpg")
    assert not isinstance(error.value, CorruptImageError)
