"""The task of an evaluation: a model and images in batches, and parts that are kept when they are finished.

And what it measures without an attack: the clean predictions, their calibration, the detection of images of other
classes by low confidence, and the accuracy under corruptions.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float, Int
from clearhead.stored_json import load_cached, store
from clearhead_lab.robustness.attacks import pgd
from clearhead_lab.robustness.classifier import PixelClassifier
from clearhead_lab.robustness.corruptions import CORRUPTIONS, SEVERITIES, corrupt_batches
from clearhead_lab.robustness.metrics import area_under_precision_recall, calibration_error, max_softmax_score
from clearhead_lab.robustness.results import Detection, Example, budget_text
from clearhead_lab.robustness.suites import Protocol

__all__ = [
    "CleanPredictions",
    "Task",
    "check_other_images",
    "clean_predictions",
    "corrupted_accuracies",
    "detect_other_images",
    "make_examples",
]

EXAMPLES = 6
"""Examples in a record."""
CORRUPTED_AT_ONCE = 100
"""Images that are corrupted at once, whatever the batch size: some corruptions draw numbers for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The model, the images, those of other classes, and the folder of finished parts; None keeps none."""

    classifier: PixelClassifier
    images: Tensor
    labels: Tensor
    batch_size: int
    seed: int
    protocol: Protocol
    folder: Path | None
    notice: Callable[[str], None]
    twin: PixelClassifier | None
    training: bool
    ood: Tensor | None = None
    ood_data: str = ""

    def part(self, title: str, key: Mapping[str, Any], measure: Callable[[], Any], *, kind: Any) -> Any:
        """Return a finished part of the folder, or measure and keep it. `kind` is the type of its plain values."""
        if self.folder is None:
            return measure()
        path = self.folder / "parts" / f"{title}.json"
        stored = load_cached(path, key, notice=self.notice, kind=kind)
        return stored["result"] if stored is not None else store(path, key, measure())

    def generator(self, *names: object) -> torch.Generator:
        """Return the generator of one part, a function of the seed and the part's names."""
        digest = hashlib.sha256("/".join(map(str, (self.seed, *names))).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def batches(self, most: int | None = None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the first image's number, the images and the labels of every batch of the first `most` images."""
        end = len(self.images) if most is None else min(most, len(self.images))
        for start in range(0, end, self.batch_size):
            part = slice(start, min(start + self.batch_size, end))
            yield start, self.images[part], self.labels[part]


def corrupted_accuracies(task: Task, kind: str) -> dict[str, tuple[float, ...]]:
    """Return the accuracy under every corruption at severities 1 to 5. The images do not depend on the batch size."""
    corruptions: Sequence[Any] = CORRUPTIONS
    if kind == "imagenet-c":
        from clearhead_lab.robustness.imagenet_c import IMAGENET_C

        corruptions = IMAGENET_C

    def accuracy(corruption: Any, severity: int) -> float:
        stored = ((part * 255).round().to(torch.uint8).cpu() for part in torch.split(task.images, CORRUPTED_AT_ONCE))
        corrupted = corrupt_batches(stored, corruption, severity=severity, seed=0)
        predicted = [task.classifier.predict(part.to(task.labels.device).float() / 255) for part in corrupted]
        return float((torch.cat(predicted) == task.labels).double().mean())

    return {c.name: tuple(accuracy(c, severity) for severity in SEVERITIES) for c in corruptions}


def make_examples(task: Task, clean: Tensor, eps: float) -> tuple[tuple[Example, ...], str]:
    """Return the first correctly classified images, before and after PGD."""
    chosen = (clean == task.labels).nonzero()[:EXAMPLES, 0]
    if task.protocol == "paper" or not len(chosen):
        return (), ""
    images, labels, generator = task.images[chosen], task.labels[chosen], task.generator("examples")
    parts = zip(*(torch.split(x, task.batch_size) for x in (images, labels)), strict=True)
    attacked = torch.cat([pgd(task.classifier, x, y, eps=eps, steps=40, generator=generator) for x, y in parts])
    after = task.classifier.predict(attacked)
    return tuple(
        Example(image=image.cpu(), attacked=changed.cpu(), label=int(label), before=int(label), after=int(predicted))
        for image, changed, label, predicted in zip(images, attacked, labels, after, strict=True)
    ), f"PGD-40 at {budget_text(eps)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPredictions:
    """The predictions for the images as they are.

    confidence: the highest softmax probability of each, in double precision
    level: the mean absolute score
    """

    predicted: Int[Tensor, "n"]
    confidence: Float[Tensor, "n"]
    level: float

    def calibration_error(self, labels: Int[Tensor, "n"]) -> float:
        """Return the expected calibration error."""
        return calibration_error(self.confidence, (self.predicted == labels).cpu())


def clean_predictions(task: Task) -> CleanPredictions:
    """Return the predictions, a batch at a time. Raise InputError if scores are not finite or labels do not fit."""
    predicted, confidence, total, classes = [], [], 0.0, 0
    for _, images, _ in task.batches():
        scores = _scores(task, images, "images")
        classes = scores.shape[-1]
        predicted.append(scores.argmax(dim=-1))
        confidence.append(max_softmax_score(scores).cpu())
        total += float(scores.abs().double().sum())
    if int(task.labels.min()) < 0 or int(task.labels.max()) >= classes:
        raise InputError(
            f"expected labels from 0 to {classes - 1}, as the model has {classes} classes; got "
            f"{int(task.labels.min())} to {int(task.labels.max())}"
        )
    return CleanPredictions(
        predicted=torch.cat(predicted), confidence=torch.cat(confidence), level=total / (len(task.labels) * classes)
    )


def detect_other_images(task: Task, clean: CleanPredictions, other: Float[Tensor, "m c y x"]) -> Detection:
    """Return how well low confidence detects images of other classes among the images of the task."""
    confidence = torch.cat(
        [
            max_softmax_score(_scores(task, part.to(task.images), "out-of-distribution images")).cpu()
            for part in torch.split(other, task.batch_size)
        ]
    )
    return Detection(
        data=task.ood_data,
        images=len(other),
        area=area_under_precision_recall(clean.confidence, confidence),
        chance=len(other) / (len(other) + len(clean.confidence)),
    )


def check_other_images(other: Tensor, images: Tensor) -> None:
    """Raise InputError unless the images of other classes have the size and the pixels of the images."""
    if other.ndim != 4 or other.shape[1:] != images.shape[1:] or not other.is_floating_point() or not len(other):
        size = ", ".join(map(str, images.shape[1:]))
        raise InputError(
            f"expected out-of-distribution images (m, {size}) of floats, of the size of the other images, at least "
            f"one; got {tuple(other.shape)} of {other.dtype}"
        )
    lowest, highest = (float(x) for x in other.aminmax())
    if not (lowest >= 0 and highest <= 1):
        raise InputError(
            f"expected out-of-distribution pixels from 0 to 1, not normalised; got {lowest:.3g} to {highest:.3g}"
        )


def _scores(task: Task, images: Tensor, words: str) -> Float[Tensor, "b k"]:
    with torch.no_grad():
        scores = task.classifier(images)
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the model's scores are not finite for some {words}; check its weights and the normalisation")
    return scores
