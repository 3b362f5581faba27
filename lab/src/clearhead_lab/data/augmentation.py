"""Preparation of images for training and evaluation, each image with its label or mask.

Crops, flips, colours and erasing are those of torchvision's transforms v2, which move a mask together with its image;
RandAugment is timm's, the one that DeiT's recipe (Touvron et al. 2021) names. Both run without torchvision's compiled
operators. Random numbers come from the global generators of torch, numpy and random, which `batches` seeds for each
sample.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead_lab.data.masks import IGNORED

__all__ = ["Augmentation", "Transform", "image_transform"]

Transform = Callable[[Tensor, int | Tensor], tuple[Tensor, int | Tensor]]
"""Turns an image (c, y, x) of bytes and its label or mask into floats (c, size, size) from 0 to 1 and its target."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's pixels: erased parts are filled with noise of this mean and spread, as in timm."""
RAND_AUGMENT_LIMIT = 9.99
"""Below 10, where timm keeps 0 bits of a pixel when it posterizes, which Pillow 13 refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes of training images, and how test images are cut.

    crop: resized (a random part of random shape, Szegedy et al. 2015), padded (shifts by up to `padding` pixels),
        scaled (a random scale, then a random part: for masks), or none (the whole image, resized)
    scale: for resized the range of the part's area, for scaled that of the factor of the shorter side
    flip: probability of mirroring from left to right
    colour_jitter: largest relative change of brightness, contrast and saturation
    rand_augment: timm's notation, such as rand-m9-mstd0.5-inc1; for labels only
    erasing: probability that a rectangle is replaced by noise (Zhong et al. 2020); for labels only
    test_crop: part of the shorter side that the central crop of a test image keeps
    """

    crop: Literal["resized", "padded", "scaled", "none"] = "none"
    scale: tuple[float, float] = (0.08, 1.0)
    padding: int = 4
    flip: float = 0.0
    colour_jitter: float = 0.0
    rand_augment: str = ""
    erasing: float = 0.0
    test_crop: float = 1.0

    def __post_init__(self) -> None:
        if self.crop not in ("resized", "padded", "scaled", "none"):
            raise InputError(f"unknown crop {self.crop!r}; choose resized, padded, scaled or none")
        if not 0 < self.scale[0] <= self.scale[1] or (self.crop == "resized" and self.scale[1] > 1):
            raise InputError(f"scale is {self.scale}; expected 0 < low <= high, at most 1 for resized crops")
        for name in ("flip", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected a probability from 0 to 1")
        if not 0 <= self.colour_jitter <= 1 or self.padding < 0 or not 0 < self.test_crop <= 1:
            raise InputError(
                f"expected colour_jitter from 0 to 1, padding of at least 0 and test_crop above 0 to 1; got "
                f"{self.colour_jitter}, {self.padding} and {self.test_crop}"
            )


def image_transform(spec: Augmentation, image_size: int, *, train: bool) -> Transform:
    """Return the function that prepares an image of any size with its label or mask.

    train: apply the random changes. Otherwise resize the shorter side and take the centre: an image of `image_size`
    stays as it is.
    """
    v2, tv_tensors = _torchvision()
    size = [image_size, image_size]
    bicubic = {"interpolation": v2.InterpolationMode.BICUBIC, "antialias": True}
    steps: list[Any] = []
    if not train:
        shorter = round(image_size / spec.test_crop)
        steps = [v2.Resize(shorter, **bicubic), v2.CenterCrop(size)]
    elif spec.crop == "resized":
        steps = [v2.RandomResizedCrop(size, scale=spec.scale, **bicubic)]
    elif spec.crop == "scaled":
        low, high = (round(image_size * factor) for factor in spec.scale)
        fill = {tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}
        steps = [v2.RandomShortestSize(list(range(low, high + 1)), **bicubic)]
        steps += [v2.RandomCrop(size, pad_if_needed=True, fill=fill)]
    else:
        steps = [v2.Resize(size, **bicubic)]
        if spec.crop == "padded":
            steps += [v2.RandomCrop(size, padding=spec.padding, fill={tv_tensors.Image: 0, tv_tensors.Mask: IGNORED})]
    if train and spec.flip:
        steps.append(v2.RandomHorizontalFlip(spec.flip))
    if train and spec.colour_jitter:
        steps.append(v2.ColorJitter(*(3 * [spec.colour_jitter])))
    return _Prepare(
        v2.Compose(steps),
        rand_augment=_rand_augment(spec.rand_augment, image_size) if train and spec.rand_augment else None,
        erase=v2.RandomErasing(1.0, value="random"),
        erasing=spec.erasing if train else 0.0,
    )


class _Prepare:
    """The steps for an image and its mask, then those for images with labels."""

    def __init__(self, steps: Any, *, rand_augment: Callable[[Any], Any] | None, erase: Any, erasing: float) -> None:
        self._steps, self._rand_augment, self._erase, self._erasing = steps, rand_augment, erase, erasing

    def __call__(self, image: Tensor, target: int | Tensor) -> tuple[Tensor, int | Tensor]:
        _, tv_tensors = _torchvision()
        if isinstance(target, Tensor):
            if self._rand_augment is not None or self._erasing:
                raise InputError("rand_augment and erasing are for labels; leave them out for masks")
            image, mask = self._steps(tv_tensors.Image(image), tv_tensors.Mask(target))
            return _as_floats(image.as_subclass(Tensor)), mask.as_subclass(Tensor)
        image = self._steps(tv_tensors.Image(image)).as_subclass(Tensor)
        if self._rand_augment is not None:
            functional = importlib.import_module("torchvision.transforms.v2.functional")
            image = functional.pil_to_tensor(self._rand_augment(functional.to_pil_image(image)))
        image = _as_floats(image)
        if self._erasing and float(torch.rand(())) < self._erasing:
            mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
            image = (self._erase((image - mean) / std) * std + mean).clamp_(0, 1)
        return image, target


def _as_floats(image: Tensor) -> Tensor:
    return image.to(torch.float32).div_(255)


def _rand_augment(config: str, image_size: int) -> Callable[[Any], Any]:
    try:
        module = importlib.import_module("timm.data.auto_augment")
    except ImportError:
        raise InputError("RandAugment is timm's; pip install 'clearhead[timm]', or leave rand_augment out") from None
    colour = tuple(round(255 * mean) for mean in MEAN)
    settings = {"translate_const": int(0.45 * image_size), "img_mean": colour, "magnitude_max": RAND_AUGMENT_LIMIT}
    try:
        augment: Callable[[Any], Any] = module.rand_augment_transform(config, settings)
    except (AssertionError, ValueError, KeyError) as error:
        raise InputError(
            f"rand_augment {config!r} is not timm's notation ({error}); try rand-m9-mstd0.5-inc1"
        ) from None
    return augment


def _torchvision() -> tuple[Any, Any]:
    ensure_torchvision()
    try:
        return importlib.import_module("torchvision.transforms.v2"), importlib.import_module("torchvision.tv_tensors")
    except ImportError:
        raise InputError("augmentation needs torchvision; pip install 'clearhead[timm]'") from None
