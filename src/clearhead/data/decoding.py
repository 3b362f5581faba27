"""Encoded images (JPEG, PNG and others) as tensors, decoded by Pillow."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.storage import MAX_INPUT_BYTES, open_file

__all__ = ["CorruptImageError", "decode_mask", "decode_pixels", "open_image"]

DECODER_ERRORS = (OSError, ValueError, SyntaxError)
"""The exceptions of Pillow's decoders on 21,000 files of seven formats, cut or changed at random."""
MAX_PIXELS = 2**26
"""Of an image."""
MASK_MODES = ("L", "P", "1")


class CorruptImageError(InputError):
    """An image that is damaged, cut short or not an image."""


def open_image(source: Path | bytes, *, name: str | None = None) -> Any:
    """Return the whole image, decoded, as Pillow's object. `name` stands for the image in messages.

    Raise CorruptImageError if it cannot be decoded, and InputError if the file does not exist.
    """
    image_module = _pillow()
    name = name or (str(source) if isinstance(source, Path) else "an image")
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else open_file(source, max_bytes=MAX_INPUT_BYTES)
        with opened as file, image_module.open(file) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"it has more than {MAX_PIXELS:,} pixels")
            image.load()
            return image
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; unpack or copy the whole set again") from None
    except (*DECODER_ERRORS, image_module.DecompressionBombError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].replace(str(source), "it")[:200]
        raise CorruptImageError(f"cannot read the image {name}: {reason}; remove it or convert it") from None


def decode_pixels(source: Path | bytes, *, name: str | None = None) -> Tensor:
    """Return an image as bytes (3, y, x): grey images are repeated, palettes resolved, transparency dropped."""
    image = open_image(source, name=name)
    return torch.from_numpy(np.array(image if image.mode == "RGB" else image.convert("RGB"))).permute(2, 0, 1)


def decode_mask(source: Path | bytes, *, name: str | None = None) -> Tensor:
    """Return a mask as bytes (y, x): the grey values, or the indices of a palette."""
    image = open_image(source, name=name)
    if image.mode not in MASK_MODES:
        raise CorruptImageError(f"the mask {name or source!r} has mode {image.mode}; expected one byte per pixel")
    return torch.from_numpy(np.array(image, dtype=np.uint8))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need pillow; pip install 'clearhead[hf]'") from None
    return Image
