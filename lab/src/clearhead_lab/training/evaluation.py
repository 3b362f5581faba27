"""Accuracy of a classifier with its confidence interval, perplexity of a language model, overlap of segmentations."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clearhead.errors import InputError
from clearhead.numerics.moments import Interval, wilson_interval
from clearhead_lab.data.masks import IGNORED


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
    parts = (slice(start, start + batch_size) for start in range(0, len(images), batch_size))
    measured = measure_classifier(model, ((as_pixels(images[part]), labels[part]) for part in parts))
    return Accuracy(right=int(measured["right"]), images=len(images))


def measure_classifier(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, int | float]:
    """Return correct predictions, accuracy and mean loss over batches of images, from 0 to 1, and labels."""
    right, count, loss = 0, 0, 0.0
    with evaluating(model) as device:
        for images, labels in batches:
            logits = model(images.to(device)).float().cpu()
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(cross_entropy(logits.double(), labels, reduction="sum"))
            count += len(labels)
    return {"right": right, "images": count, "accuracy": right / count, "test_loss": loss / count}


def measure_perplexity(
    model: nn.Module,
    tokens: Tensor,
    *,
    context: int,
    stride: int | None = None,
    batch_size: int = 16,
    targets: Tensor | None = None,
) -> float:
    """Return the perplexity of a text (n,): exp of the mean negative log-likelihood of all tokens but the first.

    targets: a text (n,) whose tokens are predicted from those of `tokens` before them; by default `tokens`
    stride: tokens between the starts of consecutive windows of `context` tokens. Each window predicts the tokens that
        no window before it predicted. None for `context`: windows do not overlap. 1 is a sliding window, in which
        every token but the first few has `context` tokens before it.
    """
    stride = context if stride is None else stride
    if not 1 <= stride <= context or len(tokens) < 2:
        raise InputError(
            f"expected a stride from 1 to the context of {context} and two tokens or more; got {stride}, {len(tokens)}"
        )
    targets = tokens if targets is None else targets
    if targets.shape != tokens.shape:
        raise InputError(f"expected as many targets as tokens; got {tuple(targets.shape)} and {tuple(tokens.shape)}")
    length = min(context, len(tokens) - 1)
    starts = list(range(0, len(tokens) - length, stride))
    if starts[-1] + length < len(tokens) - 1:
        starts.append(len(tokens) - 1 - length)
    places, total, done = torch.arange(length), 0.0, 0
    with evaluating(model) as device:
        for first in range(0, len(starts), batch_size):
            begin = torch.tensor(starts[first : first + batch_size])
            ids = begin[:, None] + places
            losses = token_losses(model, tokens[ids].to(device), targets[ids + 1].to(device)).double().cpu()
            for row, start in zip(losses, begin.tolist(), strict=True):
                total += float(row[done - start :].sum())
                done = start + length
    return math.exp(total / (len(tokens) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The agreement of predicted and true masks, from counts (classes, classes) of pixels by true and predicted class.

    Classes that occur in neither have no overlap and are left out of the means.
    """

    counts: Tensor

    @property
    def by_class(self) -> Tensor:
        """Return intersection over union of every class; NaN for one that does not occur."""
        counts = self.counts.double()
        return counts.diagonal() / (counts.sum(dim=0) + counts.sum(dim=1) - counts.diagonal())

    @property
    def mean(self) -> float:
        """Return the mean intersection over union (mIoU)."""
        return float(self.by_class.nanmean())

    @property
    def mean_accuracy(self) -> float:
        """Return the mean over classes of the proportion of its pixels that are right."""
        return float((self.counts.diagonal() / self.counts.sum(dim=1).double()).nanmean())

    @property
    def pixel_accuracy(self) -> float:
        """Return the proportion of pixels that are right."""
        return float(self.counts.diagonal().sum() / self.counts.double().sum())

    def of_majority(self) -> "Overlap":
        """Return the overlap of a prediction that gives every pixel the most frequent class."""
        counts = torch.zeros_like(self.counts)
        counts[:, int(self.counts.sum(dim=1).argmax())] = self.counts.sum(dim=1)
        return Overlap(counts=counts)


def measure_overlap(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, classes: int, ignored: int = IGNORED
) -> Overlap:
    """Return the overlap of predicted masks with true ones over batches of images and masks (b, y, x)."""
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    with evaluating(model) as device:
        for images, masks in batches:
            predicted = model(images.to(device)).argmax(dim=1).cpu()
            counted = masks != ignored
            counts += torch.bincount(masks[counted] * classes + predicted[counted], minlength=classes * classes)
    return Overlap(counts=counts.view(classes, classes))


def token_losses(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of every target, (b, n)."""
    losses = getattr(model, "loss", None)  # it need not hold all logits at once
    if losses is not None:
        result: Tensor = losses(tokens, targets)
        return result
    return cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put the model into evaluation mode, without gradients, and give it its mode back. Yield its device."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    finally:
        model.train(training)
