"""An image classifier as attacks see it: a function of pixels from 0 to 1, with its normalisation inside."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._swap import find_swaps
from clearhead.errors import InputError
from clearhead.modules.rpc import RPCAttention
from clearhead.operators.named import RPC
from clearhead.operators.pursuit_options import Pursuit
from clearhead.shapes import Float, Int
from clearhead_lab.models.transformer_block import KeysAsQueries

__all__ = ["PixelClassifier", "evaluated", "one_step_surrogate", "optimises_in_forward", "pixel_classifier"]


class PixelClassifier:
    """Scores of classes for images with pixels from 0 to 1.

    The normalisation is inside, so that a budget is in pixels whatever the model expects: on inputs divided by a
    standard deviation of about .225 a nominal 6/255 would be about 1.35/255 in pixels.

    mean, std: by channel, of the normalisation that the model expects; none by default
    own_std: by channel, of the normalisation that the model does itself
    batch_size: images that the model gets at once; by default all that are given
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        own_std: Sequence[float] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.model, self.batch_size = model, batch_size
        self._mean, self._std = (_by_channel(x) for x in (mean, std))
        if self._std is not None and not bool(((self._std > 0) & self._std.isfinite()).all()):
            raise InputError(f"expected standard deviations above zero; got {std}")
        if self._mean is not None and not bool(self._mean.isfinite().all()):
            raise InputError(f"expected finite means; got {mean}")
        self._spread = _by_channel(own_std) if self._std is None else self._std

    def __call__(self, pixels: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the scores of every class."""
        return torch.cat([self._scores(part) for part in self.split(pixels)])

    def split(self, pixels: Float[Tensor, "b c y x"]) -> tuple[Float[Tensor, "_ c y x"], ...]:
        """Return the images in the batches that the model gets."""
        return torch.split(pixels, self.batch_size or max(len(pixels), 1))

    def _scores(self, pixels: Tensor) -> Tensor:
        for name, numbers in (("mean", self._mean), ("std", self._std)):
            if numbers is not None and len(numbers) not in (1, pixels.shape[1]):
                raise InputError(f"the {name} has {len(numbers)} numbers and images have {pixels.shape[1]} channels")
        inputs = pixels if self._mean is None else pixels - self._mean.to(pixels)
        inputs = inputs if self._std is None else inputs / self._std.to(pixels)
        return _scores(self.model(inputs))

    def predict(self, pixels: Float[Tensor, "b c y x"]) -> Int[Tensor, "b"]:
        """Return the class with the highest score."""
        with torch.no_grad():
            return self(pixels).argmax(dim=-1)

    def with_model(self, model: nn.Module) -> "PixelClassifier":
        """Return another model with the same normalisation."""
        other = copy.copy(self)
        other.model = model
        return other

    def in_batches(self, batch_size: int) -> "PixelClassifier":
        """Return the same classifier, whose model never gets more images at once."""
        other = copy.copy(self)
        other.batch_size = batch_size
        return other

    @property
    def normalisation(self) -> str:
        """The normalisation in words."""
        if self._mean is None and self._std is None:
            return "none" if self._spread is None else "by the model"
        mean, std = ([] if x is None else x.flatten().tolist() for x in (self._mean, self._std))
        return f"mean {mean}, std {std}"

    @property
    def spread(self) -> Float[Tensor, "c 1 1"]:
        """The standard deviation by which pixels are divided, by the wrapper or the model; 1 if it is not known."""
        return torch.ones(1, 1, 1) if self._spread is None else self._spread


def pixel_classifier(
    model: nn.Module | PixelClassifier,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> PixelClassifier:
    """Return a model as a function of pixels. Without `mean` and `std`, they are read off the model where it has them.

    Clearhead's models normalise pixels themselves. timm's have the numbers in `pretrained_cfg`. Any other model gets
    the pixels as they are: pass `mean` and `std` if it expects normalised inputs.
    """
    if isinstance(model, PixelClassifier):
        if mean is not None or std is not None:
            raise InputError("a PixelClassifier has its mean and std already; pass them to one of the two")
        return model
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a torch.nn.Module or a PixelClassifier; got {type(model).__name__}")
    own_std = getattr(getattr(model, "config", None), "pixel_spread", None)
    stored = getattr(model, "pretrained_cfg", None)
    if mean is None and std is None and own_std is None and isinstance(stored, Mapping):
        mean, std = stored.get("mean"), stored.get("std")
    return PixelClassifier(model, mean=mean, std=std, own_std=own_std)


@contextmanager
def evaluated(classifier: PixelClassifier | None) -> Iterator[None]:
    """Put a classifier's model into evaluation mode, freeze its parameters, and give it both back."""
    model = nn.Module() if classifier is None else classifier.model
    modes = [(module, module.training) for module in model.modules()]
    needed = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    try:
        for parameter, _ in needed:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, gradient in needed:
            parameter.requires_grad_(gradient)


def optimises_in_forward(model: nn.Module) -> bool:
    """Return True if a forward pass runs an optimisation loop: RPC-Attention with two or more iterations."""
    swapped = [swap.operator.options.iterations for swap in find_swaps(model) if isinstance(swap.operator, RPC)]
    return any(iterations > 1 for iterations in (*swapped, *(pursuit.iterations for _, pursuit in _pursuits(model))))


def one_step_surrogate(model: nn.Module) -> nn.Module | None:
    """Return a copy whose RPC-Attention takes one iteration, so that gradients do not pass through iterations.

    None for a model without RPC-Attention in Clearhead's own modules.
    """
    if not any(pursuit.iterations > 1 for _, pursuit in _pursuits(model)):
        return None
    surrogate = copy.deepcopy(model)
    for owner, pursuit in list(_pursuits(surrogate)):
        if isinstance(owner, RPCAttention):
            owner.pursuit = dataclasses.replace(pursuit, iterations=1)
        else:
            owner.operator = dataclasses.replace(owner.operator, iterations=1)
    return surrogate


def _pursuits(model: nn.Module) -> Iterator[tuple[Any, Pursuit]]:
    """Yield the pursuits of RPC-Attention in Clearhead's modules, each with the object that holds it."""
    for module in model.modules():
        operator = getattr(module, "operator", None)
        if isinstance(module, RPCAttention):
            yield module, module.pursuit
        elif isinstance(operator, RPC):
            yield module, operator.options
        elif isinstance(operator, KeysAsQueries) and isinstance(operator.operator, RPC):
            yield operator, operator.operator.options


def _by_channel(numbers: Sequence[float] | None) -> Tensor | None:
    return None if numbers is None else torch.tensor(tuple(numbers)).reshape(-1, 1, 1)


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
