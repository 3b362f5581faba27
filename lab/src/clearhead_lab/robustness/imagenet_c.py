"""The corruptions of ImageNet-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), by the package `imagecorruptions`.

They are `Corruption` objects, for `corrupt` and `sweep`. Names are those of ImageNet-C's folders. An amount is the
severity itself: the package holds the constants. These are tuned for images of 224 pixels. Most lengths are in pixels,
so on 32 pixels the same severity is a stronger corruption, and results compare with each other only.

Images need 3 channels and at least 32 pixels in height and width. They are rounded to bytes first, because the package
works on bytes. Each image gets one seed from the generator, so its corruption depends neither on the other images nor
on global random state. numpy's global state is restored. numba's own generator, which glass_blur uses, stays seeded.
"""

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import ShapeError
from clearhead_lab.robustness.corruptions import Corruption

__all__ = ["IMAGENET_C", "IMAGENET_C_EXTRA", "SMALLEST_SIDE"]

SMALLEST_SIDE = 32
"""The fewest pixels in height and width of an image."""

_TAKES_SEED = frozenset({"impulse_noise", "glass_blur"})  # without a seed they ask the operating system for one
_GLOBAL_STATE = threading.Lock()


def _corrupt_images(name: str, pixels: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Return the images corrupted one by one; the generator gives one number per image."""
    _check(pixels)
    function = _functions()[name]
    images = (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    seeds = torch.randint(2**32, (len(images),), generator=generator).tolist()
    options = [{"seed": seed} if name in _TAKES_SEED else {} for seed in seeds]
    corrupted = np.empty_like(images)
    for index, image in enumerate(images):
        with _seeded(seeds[index]):
            corrupted[index] = _corrupt_image(function, image, int(severity), options[index])
    return torch.from_numpy(corrupted).permute(0, 3, 1, 2).contiguous().to(pixels) / 255


def _corrupt_image(
    function: Any, image: NDArray[np.uint8], severity: int, options: dict[str, int]
) -> NDArray[np.uint8]:
    """Return one image (y, x, 3) corrupted and cut off to whole numbers, as ImageNet-C was made."""
    from PIL import Image

    # spatter divides by the largest drop: zero if no drop falls, which on 32 pixels happens to 1 image in 60.
    with np.errstate(invalid="ignore"):
        result = np.asarray(function(Image.fromarray(image), severity, **options))
    return np.where(np.isfinite(result), result, image).astype(np.uint8)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, and restore its state at the end."""
    with _GLOBAL_STATE:
        state = np.random.get_state()
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)


def _functions() -> dict[str, Any]:
    """Return the package's functions by name."""
    try:
        package: Any = importlib.import_module("imagecorruptions")
    except ImportError as error:
        raise InputError(
            f"ImageNet-C corruptions need imagecorruptions ({error}); pip install 'clearhead-lab[corruptions]'"
        ) from None
    functions: dict[str, Any] = package.corruption_dict
    return functions


def _check(pixels: Tensor) -> None:
    channels, height, width = pixels.shape[1:]
    if channels != 3:
        raise ShapeError(
            f"ImageNet-C corruptions need images of 3 channels; got {channels}: repeat grey images with "
            "images.expand(-1, 3, -1, -1)"
        )
    if min(height, width) < SMALLEST_SIDE:
        raise ShapeError(
            f"ImageNet-C corruptions need images of at least {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels; got "
            f"{height} x {width}: enlarge them, or use clearhead_lab.robustness.corruptions.CORRUPTIONS"
        )


def _corruption(name: str) -> Corruption:
    return Corruption(name=name, amounts=(1.0, 2.0, 3.0, 4.0, 5.0), apply=partial(_corrupt_images, name))


IMAGENET_C = tuple(
    _corruption(name)
    for name in (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )
)
"""The 15 corruptions of the benchmark: noise, blur, weather and digital."""

IMAGENET_C_EXTRA = tuple(_corruption(name) for name in ("speckle_noise", "gaussian_blur", "spatter", "saturate"))
"""The 4 further corruptions, for choices that must not use the 15."""
