"""Image corruptions at five severities, after Hendrycks and Dietterich 2019 (arXiv 1903.12261).

The protocol is theirs: several corruptions, five severities of each, the mean over all. The corruptions and their
constants are ours, chosen on images of 28 x 28 pixels, so results do not compare with ImageNet-C. Lengths are fractions
of the side of an image, so they carry over to other sizes. `sweep` measures under every corruption and severity.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError

__all__ = ["CORRUPTIONS", "NOISES", "SEVERITIES", "Corruption", "SweepResult", "corrupt", "corrupt_batches", "sweep"]

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """An image corruption with one amount per severity.

    apply: (pixels, amount, generator) -> pixels; the result is clamped to [0, 1]
    """

    name: str
    amounts: tuple[float, float, float, float, float]
    apply: Callable[[Tensor, float, torch.Generator], Tensor]

    def __call__(
        self, pixels: Float[Tensor, "n c y x"], *, severity: int, generator: torch.Generator
    ) -> Float[Tensor, "n c y x"]:
        """Return the images, with pixels in [0, 1], corrupted at a severity from 1 to 5.

        Equal generator states give bit-identical images.
        """
        if severity not in SEVERITIES:
            raise InputError(f"severity must be from {SEVERITIES[0]} to {SEVERITIES[-1]}; got {severity}")
        if pixels.ndim != 4 or 0 in pixels.shape:
            raise ShapeError(f"expected images (n, c, y, x); got {tuple(pixels.shape)}")
        if not (pixels.is_floating_point() and pixels.amin() >= 0 and pixels.amax() <= 1):
            raise InputError(f"expected pixels from 0 to 1; got {pixels.dtype} from {pixels.amin()} to {pixels.amax()}")
        return self.apply(pixels, self.amounts[severity - 1], generator).clamp(0, 1)


def _gaussian_noise(pixels: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of standard deviation `spread` to every pixel."""
    return pixels + spread * torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)


def _shot_noise(pixels: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """Replace a pixel x by Poisson(photons * x) / photons."""
    return torch.poisson(pixels * photons, generator=generator) / photons


def _impulse_noise(pixels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Set a random fraction of the pixels to black or white with equal probability."""
    uniform = torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype)
    return torch.where(uniform < fraction, (uniform < fraction / 2).to(pixels.dtype), pixels)


def _blur(pixels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Convolve with a Gaussian whose standard deviation is a fraction of the side; replicate edge pixels."""
    spread = fraction * pixels.shape[-1]
    radius = math.ceil(3 * spread)
    window = torch.exp(-(torch.arange(-radius, radius + 1, dtype=pixels.dtype) ** 2) / (2 * spread**2))
    window = (window / window.sum())[None, None]
    channels = pixels.shape[1]
    for vertical in (True, False):
        padding = (0, 0, radius, radius) if vertical else (radius, radius, 0, 0)
        kernel = window[..., None] if vertical else window[:, :, None]
        padded = functional.pad(pixels, padding, mode="replicate")
        pixels = functional.conv2d(padded, kernel.expand(channels, -1, -1, -1), groups=channels)
    return pixels


def _contrast(pixels: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    """Scale every pixel's distance from the mean of its image by `factor`."""
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    return mean + factor * (pixels - mean)


def _brightness(pixels: Tensor, added: float, generator: torch.Generator) -> Tensor:
    """Add a constant to every pixel."""
    return pixels + added


def _pixelate(pixels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Replace every pixel by the mean of its cell in a coarser grid."""
    height, width = (_cell_means(side, max(round(fraction * side), 1)).to(pixels) for side in pixels.shape[-2:])
    return height @ pixels @ width


def _cell_means(side: int, cells: int) -> Tensor:
    """Return the symmetric (side, side) matrix that averages entries within cells whose sizes differ by at most one."""
    cell = torch.arange(side) * cells // side
    same_cell = (cell[:, None] == cell).double()
    return same_cell / same_cell.sum(dim=1)


def _occlusion(pixels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Cover a random square of each image with grey; its side is a fraction of the image's."""
    height, width = pixels.shape[-2:]
    side = max(round(fraction * min(height, width)), 1)
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
"""Corruptions that add noise to pixels."""

CORRUPTIONS = (
    *NOISES,
    Corruption(name="blur", amounts=(0.018, 0.03, 0.045, 0.06, 0.08), apply=_blur),
    Corruption(name="contrast", amounts=(0.6, 0.45, 0.3, 0.2, 0.1), apply=_contrast),
    Corruption(name="brightness", amounts=(0.1, 0.2, 0.3, 0.4, 0.5), apply=_brightness),
    Corruption(name="pixelate", amounts=(0.75, 0.6, 0.45, 0.35, 0.25), apply=_pixelate),
    Corruption(name="occlusion", amounts=(0.2, 0.3, 0.4, 0.5, 0.6), apply=_occlusion),
)
"""All corruptions, noises first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A metric under one corruption at severities 1 to 5."""

    corruption: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean over severities."""
        return sum(self.values) / len(self.values)


def corrupt(images: Tensor, corruption: Corruption, *, severity: int, seed: int) -> Tensor:
    """Return uint8 images (n, c, y, x) corrupted and rounded to uint8.

    The random numbers depend on the seed, the corruption's name and the severity only. So every model gets the same
    images, whichever other corruptions are applied.
    """
    [corrupted] = corrupt_batches([images], corruption, severity=severity, seed=seed)
    return corrupted


def corrupt_batches(batches: Iterable[Tensor], corruption: Corruption, *, severity: int, seed: int) -> Iterator[Tensor]:
    """Yield each batch of uint8 images (n, c, y, x) corrupted and rounded to uint8.

    One generator serves all batches. The corruptions of ImageNet-C give an image the same pixels however the images are
    divided into batches; the others draw numbers for a whole batch.
    """
    digest = hashlib.sha256(f"{seed}/{corruption.name}/{severity}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    for images in batches:
        if images.dtype != torch.uint8:
            raise InputError(f"expected images of dtype uint8; got {images.dtype}")
        pixels = corruption(images.float() / 255, severity=severity, generator=generator)
        yield (pixels * 255).round().to(torch.uint8)


def sweep(
    images: Tensor,
    measure: Callable[[Tensor], float],
    *,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[SweepResult]:
    """Return `measure(images)` under each corruption at each severity, for uint8 images (n, c, y, x).

    `progress` is called with the name of each corruption before it is applied.
    """
    results = []
    for corruption in corruptions:
        if progress is not None:
            progress(corruption.name)
        values = [measure(corrupt(images, corruption, severity=severity, seed=seed)) for severity in SEVERITIES]
        results.append(SweepResult(corruption=corruption.name, values=tuple(float(value) for value in values)))
    return results
