"""Accuracy of a classifier, with its confidence interval."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.numerics.moments import Interval, wilson_interval

__all__ = ["Accuracy", "as_pixels", "measure_accuracy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The number of correct predictions among `images`, and the proportion with its 95% interval."""

    right: int
    images: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.images or self.images < 1:
            raise InputError(f"expected 0 <= right <= images and one image or more; got {self.right} of {self.images}")

    @property
    def value(self) -> float:
        """Return the proportion of correct predictions."""
        return self.right / self.images

    @property
    def interval(self) -> Interval:
        """Return Wilson's 95% interval of the proportion."""
        return wilson_interval(self.right, self.images)


def as_pixels(images: Tensor) -> Tensor:
    """Return byte images as floats from 0 to 1."""
    return images.float() / 255


def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 500) -> Accuracy:
    """Return the accuracy on byte images (n, c, y, x). The model runs in evaluation mode and gets its mode back."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            right = 0
            for start in range(0, len(images), batch_size):
                batch = slice(start, start + batch_size)
                right += int((model(as_pixels(images[batch])).argmax(dim=1) == labels[batch]).sum())
    finally:
        model.train(training)
    return Accuracy(right=right, images=len(images))
