"""Checks of sizes, pixel normalisation, patches and their positions, for models of images."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError

MAX_LAYERS = 10_000
"""More than any model has. Millions of layers would take hours to build."""


def check_sizes(**sizes: object) -> None:
    """Raise InputError unless every size is an integer of at least 1 and layers are at most `MAX_LAYERS`."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InputError(f"expected {name} of at least 1; got {size!r}")
        if name.endswith("layers") and size > MAX_LAYERS:
            raise InputError(f"expected {name} of at most {MAX_LAYERS:,}; got {size!r}")


def check_divides(*, whole: str, part: str, sizes: tuple[int, int]) -> None:
    """Raise InputError unless the second size divides the first."""
    if sizes[0] % sizes[1]:
        raise InputError(f"expected {part} that divides {whole}; got {sizes[1]} and {sizes[0]}")


def per_channel(name: str, values: Sequence[float], *, channels: int) -> tuple[float, ...]:
    """Return one finite number per channel; 0.5 each if `values` is empty."""
    values = tuple(values) or (0.5,) * channels
    if len(values) != channels or not all(math.isfinite(x) for x in values):
        raise InputError(f"expected {name} with one finite number for each of {channels} channels")
    return values


def check_images(config: Any) -> None:
    """Raise InputError unless the settings of images fit; replace the numbers of channels by tuples of floats.

    image_size: height and width of an image; must be a multiple of patch_size
    channels: number of image channels
    pixel_mean, pixel_spread: per channel, mean that is subtracted and standard deviation that is divided by
    """
    check_sizes(image_size=config.image_size, patch_size=config.patch_size, channels=config.channels)
    check_divides(whole="image_size", part="patch_size", sizes=(config.image_size, config.patch_size))
    for name in ("pixel_mean", "pixel_spread"):
        object.__setattr__(config, name, per_channel(name, getattr(config, name), channels=config.channels))
    if min(config.pixel_spread) <= 0:
        raise InputError(f"expected pixel_spread above zero; got {config.pixel_spread}")


class PixelNorm(nn.Module):
    """Per-channel normalisation: subtract a mean, divide by a standard deviation. Neither is a parameter or saved."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Sequence[float], spread: Sequence[float], *, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(tuple(spread)).view(-1, 1, 1), persistent=False)
        self.size = size

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return normalised images. images: (b, channels, size, size), from 0 to 1."""
        expected = (len(self.mean), self.size, self.size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ShapeError(f"expected images (b, {', '.join(map(str, expected))}); got {tuple(images.shape)}")
        return (images - self.mean) / self.spread


def patches(images: Float[Tensor, "b c y x"], size: int) -> Float[Tensor, "b n c py px"]:
    """Return the patches of images, (b, n, c, size, size), row by row."""
    rows = images.unfold(2, size, size).unfold(3, size, size)
    return rows.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


def interpolate_positions(positions: Float[Tensor, "1 n d"], *, side: int) -> Float[Tensor, "1 m d"]:
    """Return the positions of a class token and of side x side patches, from those of another square of patches.

    The class token's is kept. Those of patches are interpolated along rows and columns, bicubically and with
    antialiasing, as timm does; in float32 if their dtype is narrower.
    """
    token, grid = positions[:, :1], positions[:, 1:]
    if grid.shape[1] == side**2:
        return positions
    before = math.isqrt(grid.shape[1])
    plane = grid.mT.reshape(1, -1, before, before).to(torch.promote_types(grid.dtype, torch.float32))
    resized = interpolate(plane, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([token, resized.flatten(2).mT.to(token.dtype)], dim=1)
