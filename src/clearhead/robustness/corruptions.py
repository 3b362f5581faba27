"""Images made worse at five severities, after Hendrycks and Dietterich 2019 (arXiv 1903.12261).

The idea is theirs: kinds of corruption, five severities of each, the mean over all. Kinds and constants are ours,
chosen on images of 28 x 28 pixels, so that no number here compares with one of ImageNet-C. Lengths are shares of the
side of an image, so that they mean the same on images of another size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError

__all__ = ["CORRUPTIONS", "NOISES", "SEVERITIES", "Corruption"]

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """One way in which images get worse, by an amount for each severity.

    apply: (pixels, amount, generator) -> pixels; what leaves the range from 0 to 1 is cut off afterwards
    """

    name: str
    amounts: tuple[float, float, float, float, float]
    apply: Callable[[Tensor, float, torch.Generator], Tensor]

    def __call__(
        self, pixels: Float[Tensor, "n c y x"], *, severity: int, generator: torch.Generator
    ) -> Float[Tensor, "n c y x"]:
        """The images (n, c, y, x), from 0 to 1, at a severity from 1 to 5. The same generator state, the same bits."""
        if severity not in SEVERITIES:
            raise InputError(f"expected a severity from {SEVERITIES[0]} to {SEVERITIES[-1]}; got {severity}")
        if pixels.ndim != 4 or 0 in pixels.shape:
            raise ShapeError(f"expected images (n, c, y, x); got {tuple(pixels.shape)}")
        if not (pixels.is_floating_point() and pixels.amin() >= 0 and pixels.amax() <= 1):
            raise InputError(f"expected pixels from 0 to 1; got {pixels.dtype} from {pixels.amin()} to {pixels.amax()}")
        return self.apply(pixels, self.amounts[severity - 1], generator).clamp(0, 1)


def _gaussian_noise(pixels: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Normal noise of this standard deviation on every pixel."""
    return pixels + spread * torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)


def _shot_noise(pixels: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """As counted from so many photons where a pixel is 1: Poisson(photons x) / photons."""
    return torch.poisson(pixels * photons, generator=generator) / photons


def _impulse_noise(pixels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A share of the pixels, by chance, is black or white, half of it each."""
    drawn = torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype)
    return torch.where(drawn < share, (drawn < share / 2).to(pixels.dtype), pixels)


def _blur(pixels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A Gaussian window, its standard deviation a share of the side; pixels at the edge go on beyond it."""
    spread = share * pixels.shape[-1]
    radius = math.ceil(3 * spread)
    window = torch.exp(-(torch.arange(-radius, radius + 1, dtype=pixels.dtype) ** 2) / (2 * spread**2))
    window = (window / window.sum())[None, None]
    channels = pixels.shape[1]
    for vertical in (True, False):
        room = (0, 0, radius, radius) if vertical else (radius, radius, 0, 0)
        kernel = window[..., None] if vertical else window[:, :, None]
        wide = functional.pad(pixels, room, mode="replicate")
        pixels = functional.conv2d(wide, kernel.expand(channels, -1, -1, -1), groups=channels)
    return pixels


def _contrast(pixels: Tensor, kept: float, generator: torch.Generator) -> Tensor:
    """Only this share of every pixel's distance from the mean of its image."""
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    return mean + kept * (pixels - mean)


def _brightness(pixels: Tensor, added: float, generator: torch.Generator) -> Tensor:
    """So much more on every pixel."""
    return pixels + added


def _pixelate(pixels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Every pixel the mean of its cell in a coarser grid, whose side is a share of the image's."""
    height, width = (_cell_means(side, max(round(share * side), 1)).to(pixels) for side in pixels.shape[-2:])
    return height @ pixels @ width


def _cell_means(side: int, cells: int) -> Tensor:
    """The symmetric matrix (side, side) that takes entries to the means of their cells; cells differ by one at most."""
    cell = torch.arange(side) * cells // side
    together = (cell[:, None] == cell).double()
    return together / together.sum(dim=1)


def _occlusion(pixels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A grey square somewhere in each image, its side a share of the image's."""
    height, width = pixels.shape[-2:]
    side = max(round(share * min(height, width)), 1)
    top = torch.randint(0, height - side + 1, (len(pixels), 1), generator=generator)
    left = torch.randint(0, width - side + 1, (len(pixels), 1), generator=generator)
    rows, columns = torch.arange(height), torch.arange(width)
    inside = ((rows >= top) & (rows < top + side))[:, :, None] & ((columns >= left) & (columns < left + side))[:, None]
    return torch.where(inside[:, None], 0.5, pixels)


NOISES = (
    Corruption(name="gaussian noise", amounts=(0.05, 0.1, 0.2, 0.3, 0.45), apply=_gaussian_noise),
    Corruption(name="shot noise", amounts=(60.0, 25.0, 12.0, 6.0, 3.0), apply=_shot_noise),
    Corruption(name="impulse noise", amounts=(0.02, 0.05, 0.1, 0.18, 0.3), apply=_impulse_noise),
)
"""What adds chance to every pixel, or to some."""

CORRUPTIONS = (
    *NOISES,
    Corruption(name="blur", amounts=(0.018, 0.03, 0.045, 0.06, 0.08), apply=_blur),
    Corruption(name="contrast", amounts=(0.6, 0.45, 0.3, 0.2, 0.1), apply=_contrast),
    Corruption(name="brightness", amounts=(0.1, 0.2, 0.3, 0.4, 0.5), apply=_brightness),
    Corruption(name="pixelate", amounts=(0.75, 0.6, 0.45, 0.35, 0.25), apply=_pixelate),
    Corruption(name="occlusion", amounts=(0.2, 0.3, 0.4, 0.5, 0.6), apply=_occlusion),
)
"""Every corruption, the noises first."""
