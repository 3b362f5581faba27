"""One evaluation of a model under every corruption and severity."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.robustness.corruptions import CORRUPTIONS, SEVERITIES, Corruption

__all__ = ["Swept", "corrupted", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was measured under one corruption, from severity 1 to 5."""

    corruption: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the severities."""
        return sum(self.values) / len(self.values)


def corrupted(images: Tensor, corruption: Corruption, *, severity: int, seed: int) -> Tensor:
    """Images (n, c, y, x) as bytes, made worse and rounded to bytes again, as images are stored.

    Chance comes from the seed, the corruption's name and the severity alone, so every model is shown the same images,
    and they stay the same when other corruptions come or go.
    """
    if images.dtype != torch.uint8:
        raise InputError(f"expected images as bytes; got {images.dtype}")
    digest = hashlib.sha256(f"{seed}/{corruption.name}/{severity}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    pixels = corruption(images.float() / 255, severity=severity, generator=generator)
    return (pixels * 255).round().to(torch.uint8)


def sweep(
    images: Tensor,
    measure: Callable[[Tensor], float],
    *,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Swept]:
    """What `measure` says of the images (n, c, y, x), as bytes, under each corruption at each severity.

    `progress` is told the name of every corruption before it is applied.
    """
    swept = []
    for corruption in corruptions:
        if progress is not None:
            progress(corruption.name)
        shown = (corrupted(images, corruption, severity=severity, seed=seed) for severity in SEVERITIES)
        swept.append(Swept(corruption=corruption.name, values=tuple(float(measure(worse)) for worse in shown)))
    return swept
