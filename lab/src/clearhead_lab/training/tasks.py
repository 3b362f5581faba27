"""What a model is trained for: classification of images, language modelling, or segmentation.

A task gives one loss for each row of a batch. The mean over all rows is then the same however rows are divided between
processes and accumulated parts. Random draws are apart from the losses, so that torch.compile sees none of them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from clearhead.errors import InputError
from clearhead_lab.data.masks import IGNORED
from clearhead_lab.training.evaluation import token_losses
from clearhead_lab.training.recipe import Recipe

Evaluate = Callable[[nn.Module], Mapping[str, Any]]
"""Measures a model after an epoch, for the log."""


def _measure_nothing(model: nn.Module) -> Mapping[str, Any]:
    return {}


@runtime_checkable
class Task(Protocol):
    """A random change of a batch, a loss, and the evaluation after every epoch."""

    evaluate: Evaluate

    def draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return the tensors for `losses`, changed at random. Every part of a batch has the same generator state."""
        ...

    @property
    def losses(self) -> Callable[..., Tensor]:
        """Return the function of a model and of the tensors from `draw` that gives the loss of every row, (b,)."""
        ...


class Classification:
    """Cross-entropy of labels, with the recipe's label smoothing, mixup and cutmix."""

    def __init__(self, recipe: Recipe, evaluate: Evaluate = _measure_nothing) -> None:
        self.smoothing, self.mixup, self.cutmix = recipe.label_smoothing, recipe.mixup, recipe.cutmix
        self.evaluate = evaluate

    def draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return the images, mixed if the recipe does so, the labels, and the share of an image's own label."""
        if not self.mixup and not self.cutmix:
            return inputs, targets
        mixed, share = mix_neighbours(inputs, generator, mixup=self.mixup, cutmix=self.cutmix)
        return mixed, targets, torch.tensor(share, dtype=torch.float64)

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor, share: Tensor | None = None) -> Tensor:
        """Return the loss of every image, (b,). share: of an image's own label; the rest is its neighbour's."""
        logits = model(inputs)
        losses = cross_entropy(logits, targets, label_smoothing=self.smoothing, reduction="none")
        if share is not None:
            other = cross_entropy(logits, _exchange(targets), label_smoothing=self.smoothing, reduction="none")
            losses = share * losses + (1 - share) * other
        return losses


class Language:
    """The negative log-likelihood of the next token, the mean over a sequence."""

    def __init__(self, evaluate: Evaluate = _measure_nothing) -> None:
        self.evaluate = evaluate

    def draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return inputs and targets as they are."""
        return inputs, targets

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sequence, (b,)."""
        return token_losses(model, inputs, targets).mean(dim=1)


class Segmentation:
    """Cross-entropy of the class of every pixel, the mean over the pixels of an image that are not ignored."""

    def __init__(self, evaluate: Evaluate = _measure_nothing) -> None:
        self.evaluate = evaluate

    def draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return inputs and targets as they are."""
        return inputs, targets

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every image, (b,); 0 for an image without a pixel that counts."""
        logs = model(inputs).log_softmax(dim=1)
        losses = nll_loss(logs, targets, ignore_index=IGNORED, reduction="none")
        return losses.sum(dim=(1, 2)) / (targets != IGNORED).sum(dim=(1, 2)).clamp(min=1)


def mix_neighbours(images: Tensor, generator: torch.Generator, *, mixup: float, cutmix: float) -> tuple[Tensor, float]:
    """Mix rows 2i and 2i + 1 of a batch by mixup (Zhang et al. 2018) or cutmix (Yun et al. 2019).

    mixup, cutmix: alpha of Beta(alpha, alpha); with both, each is used in half of the batches

    Return the images and the share of a row's own image in it. Libraries pair a row with one anywhere in the batch,
    which processes that hold a part of the batch cannot do; neighbours stay together.
    """
    if len(images) % 2:
        raise InputError(f"mixup and cutmix need an even number of rows in every process; got {len(images)}")
    coin = float(torch.rand((), generator=generator))
    cut = cutmix > 0 and (mixup == 0 or coin < 0.5)
    share = _draw_beta(cutmix if cut else mixup, generator)
    others = _exchange(images)
    if not cut:
        return share * images + (1 - share) * others, share
    height, width = images.shape[-2:]
    side = math.sqrt(1 - share)
    row, column = (int(torch.randint(size, (), generator=generator)) for size in (height, width))
    rows = slice(max(0, row - int(side * height / 2)), min(height, row + int(side * height / 2)))
    columns = slice(max(0, column - int(side * width / 2)), min(width, column + int(side * width / 2)))
    mixed = images.clone()
    mixed[..., rows, columns] = others[..., rows, columns]
    replaced = (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
    return mixed, 1 - replaced


def _exchange(rows: Tensor) -> Tensor:
    """Exchange rows 2i and 2i + 1."""
    return rows.view(-1, 2, *rows.shape[1:]).flip(1).reshape(rows.shape)


def _draw_beta(alpha: float, generator: torch.Generator) -> float:
    """Draw from Beta(alpha, alpha): a ratio of two gamma variables. torch.distributions takes no generator."""
    gammas = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator)
    return float(gammas[0] / gammas.sum()) if float(gammas.sum()) > 0 else 0.5
