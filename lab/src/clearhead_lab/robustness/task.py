"""The task of an evaluation: a model and images in batches, and parts that are kept when they are finished."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.stored_json import load_cached, store
from clearhead_lab.robustness.attacks import pgd
from clearhead_lab.robustness.classifier import PixelClassifier
from clearhead_lab.robustness.corruptions import CORRUPTIONS, SEVERITIES
from clearhead_lab.robustness.results import Example, budget_text
from clearhead_lab.robustness.suites import Protocol
from clearhead_lab.robustness.sweep import corrupt_batches

__all__ = ["Task", "corrupted_accuracies", "make_examples"]

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
