"""Small images in rows and columns, as one SVG file that needs nothing else: photographs, masks, maps of attention."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import InputError
from clearhead.report.svg import document, text, text_width

__all__ = ["Pixels", "heat", "masked", "png", "tile_picture"]

Pixels = NDArray[np.uint8]
"""Rows, columns, and red, green and blue."""

TILE, GAP, MARGIN, HEAD = 104.0, 10.0, 14.0, 24.0
LOW, HIGH = np.array([247, 247, 244]), np.array([31, 95, 168])
"""Of a map: nothing, and the most."""


def png(pixels: Pixels) -> bytes:
    """The image as a PNG file."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, dtype=np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def heat(weights: NDArray[np.float64]) -> Pixels:
    """Weights (y, x) as colours, the largest the darkest."""
    most = float(weights.max())
    share = (weights / most if most > 0 else weights)[..., None]
    colours: Pixels = np.rint(LOW + share * (HIGH - LOW)).astype(np.uint8)
    return colours


def masked(pixels: Pixels, mask: NDArray[np.bool_]) -> Pixels:
    """The image where the mask is, and pale elsewhere."""
    pale = 0.25 * pixels + 0.75 * 255
    return np.where(mask[..., None], pixels, pale).astype(np.uint8)


def tile_picture(rows: Sequence[tuple[str, Sequence[Pixels]]], *, columns: Sequence[str], title: str) -> str:
    """Rows of images, each with its name before it and each column with its name over it."""
    if any(len(tiles) != len(columns) for _, tiles in rows):
        raise InputError(f"expected {len(columns)} images in every row, as there are columns")
    left = MARGIN + max((text_width(name) for name, _ in rows if name), default=0.0)
    parts = [
        text(left + place * (TILE + GAP) + TILE / 2, MARGIN + 8, name, kind="small", anchor="middle")
        for place, name in enumerate(columns)
    ]
    for line, (name, tiles) in enumerate(rows):
        y = MARGIN + HEAD + line * (TILE + GAP)
        parts.append(text(MARGIN, y + TILE / 2, name, kind="small"))
        parts += [_image(left + place * (TILE + GAP), y, tile) for place, tile in enumerate(tiles)]
    width = left + len(columns) * (TILE + GAP) + MARGIN
    return document(parts, width=width, height=MARGIN + HEAD + len(rows) * (TILE + GAP) + MARGIN, title=title)


def _image(x: float, y: float, pixels: Pixels) -> str:
    data = base64.b64encode(png(pixels)).decode("ascii")
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{TILE:.0f}" height="{TILE:.0f}" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )
