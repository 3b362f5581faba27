"""PNG images of tensors, without an image library (ISO/IEC 15948, colour types 0 and 2, 8 bits)."""

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float

__all__ = ["png_address", "png_bytes"]

GREY, COLOUR = 0, 2


def png_bytes(pixels: Float[Tensor, "c y x"]) -> bytes:
    """Return a grey (c = 1) or colour (c = 3) image with pixels from 0 to 1 as the bytes of a PNG file.

    Pixels are clipped to that range and rounded to multiples of 1/255.
    """
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise InputError(f"expected pixels (c, y, x) with 1 or 3 channels; got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape
    rounded = (pixels.detach().cpu().double().clamp(0, 1) * 255).round().permute(1, 2, 0)
    rows = rounded.numpy().astype(np.uint8).reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    data = zlib.compress(_filtered(rows, channels), level=9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def png_address(pixels: Float[Tensor, "c y x"]) -> str:
    """Return the same as a data: address for HTML."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode("ascii")


def _filtered(rows: npt.NDArray[np.uint8], channels: int) -> bytes:
    """Return the rows, each after its filter's number: as it is, minus the pixel to the left, or minus that above.

    Each row has the filter with the smallest sum of absolute differences, which compresses best as a rule.
    """
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, channels:] = rows[:, :-channels]
    above[1:] = rows[:-1]
    choices = np.stack([rows, rows - left, rows - above])
    best = np.abs(choices.view(np.int8).astype(np.int32)).sum(axis=2).argmin(axis=0)
    chosen = choices[best, np.arange(len(rows))]
    return np.concatenate([best[:, None].astype(np.uint8), chosen], axis=1).tobytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
