"""Evaluate a model under every corruption and severity."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead_lab.robustness.corruptions import CORRUPTIONS, SEVERITIES, Corruption

__all__ = ["SweepResult", "corrupt", "corrupt_batches", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A metric under one corruption at severities 1 to 5."""

    corruption: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean over severities."""
        return sum(self.values) / len(self.values)


def corrupt(images: Tensor, corruption: Corruption, *, severity: int, seed: int) -> Tensor:
    """Return uint8 images (n, c, y, x) corrupted and rounded to uint8.

    The random numbers depend on the seed, the corruption's name and the severity only. So every model gets the same
    images, whichever other corruptions are applied.
    """
    [corrupted] = corrupt_batches([images], corruption, severity=severity, seed=seed)
    return corrupted


def corrupt_batches(batches: Iterable[Tensor], corruption: Corruption, *, severity: int, seed: int) -> Iterator[Tensor]:
    """Yield each batch of uint8 images (n, c, y, x) corrupted and rounded to uint8.

    One generator serves all batches. The corruptions of ImageNet-C give an image the same pixels however the images are
    divided into batches; the others draw numbers for a whole batch.
    """
    digest = hashlib.sha256(f"{seed}/{corruption.name}/{severity}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    for images in batches:
        if images.dtype != torch.uint8:
            raise InputError(f"expected images of dtype uint8; got {images.dtype}")
        pixels = corruption(images.float() / 255, severity=severity, generator=generator)
        yield (pixels * 255).round().to(torch.uint8)


def sweep(
    images: Tensor,
    measure: Callable[[Tensor], float],
    *,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[SweepResult]:
    """Return `measure(images)` under each corruption at each severity, for uint8 images (n, c, y, x).

    `progress` is called with the name of each corruption before it is applied.
    """
    results = []
    for corruption in corruptions:
        if progress is not None:
            progress(corruption.name)
        values = [measure(corrupt(images, corruption, severity=severity, seed=seed)) for severity in SEVERITIES]
        results.append(SweepResult(corruption=corruption.name, values=tuple(float(value) for value in values)))
    return results
