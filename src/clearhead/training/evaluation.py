"""How often a classifier is right, with the interval that so many images allow."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.numerics.moments import Interval
from clearhead.numerics.proportion import wilson_interval

__all__ = ["Accuracy", "as_pixels", "measure_accuracy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """`right` of `images` images, and the share that this is with its 95 % interval."""

    right: int
    images: int

    @property
    def value(self) -> float:
        """The share of images that are right."""
        return self.right / self.images

    @property
    def interval(self) -> Interval:
        """Wilson's interval of the share."""
        return wilson_interval(self.right, self.images)


def as_pixels(images: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1."""
    return images.float() / 255


def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 500) -> Accuracy:
    """How many of the images (n, c, y, x), given as bytes, get their label. The mode of the model stays as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            right = 0
            for first in range(0, len(images), batch_size):
                some = slice(first, first + batch_size)
                right += int((model(as_pixels(images[some])).argmax(dim=1) == labels[some]).sum())
    finally:
        model.train(training)
    return Accuracy(right=right, images=len(images))
