"""The confidence of a classifier: its clean predictions, their calibration, and the detection of other classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float, Int
from clearhead_lab.robustness.metrics import area_under_precision_recall, calibration_of_confidences, max_softmax_score
from clearhead_lab.robustness.results import Detection
from clearhead_lab.robustness.task import Task

__all__ = ["CleanPredictions", "check_other_images", "clean_predictions", "detect_other_images"]


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
        return calibration_of_confidences(self.confidence, (self.predicted == labels).cpu())


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
