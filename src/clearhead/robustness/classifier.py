"""An image classifier as attacks see it: a function of pixels from 0 to 1, with its normalisation inside."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Float, Int

__all__ = ["PixelClassifier"]


class PixelClassifier:
    """Scores of classes for images with pixels from 0 to 1.

    The normalisation is inside, so that a budget is in pixels whatever the model expects: on inputs divided by a
    standard deviation of about .225 a nominal 6/255 would be about 1.35/255 in pixels.

    mean, std: by channel, of the normalisation that the model expects; none by default
    """

    def __init__(
        self, model: nn.Module, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        self._model = model
        self._mean, self._std = (None if x is None else torch.tensor(x).reshape(-1, 1, 1) for x in (mean, std))
        if self._std is not None and not bool((self._std > 0).all()):
            raise InputError(f"expected standard deviations above zero; got {std}")

    def __call__(self, pixels: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the scores of every class."""
        inputs = pixels if self._mean is None else pixels - self._mean.to(pixels)
        inputs = inputs if self._std is None else inputs / self._std.to(pixels)
        return _scores(self._model(inputs))

    def predict(self, pixels: Float[Tensor, "b c y x"]) -> Int[Tensor, "b"]:
        """Return the class with the highest score."""
        with torch.no_grad():
            return self(pixels).argmax(dim=-1)


def _scores(output: Any) -> Tensor:
    """Return the scores in a model's output: a tensor, Hugging Face's output, a dictionary or a tuple."""
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    elif isinstance(output, tuple) and output:
        output = output[0]
    else:
        output = getattr(output, "logits", output)
    if not isinstance(output, Tensor) or output.ndim != 2:
        kind = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"expected scores of shape (images, classes), or an output with `logits`; got {kind}")
    return output
