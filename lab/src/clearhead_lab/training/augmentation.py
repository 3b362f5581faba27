"""Random augmentation of images: shifts by a few pixels and horizontal flips."""

import torch
from torch import Tensor

__all__ = ["random_changes", "random_shift"]


def random_shift(images: Tensor, generator: torch.Generator, *, max_pixels: int = 2) -> Tensor:
    """Shift each image (b, c, y, x) by up to `max_pixels` along both axes, independently; pad with zeros."""
    b, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (max_pixels,) * 4)
    rows = torch.randint(0, 2 * max_pixels + 1, (b, 1), generator=generator) + torch.arange(height)
    columns = torch.randint(0, 2 * max_pixels + 1, (b, 1), generator=generator) + torch.arange(width)
    shifted = padded.gather(2, rows[:, None, :, None].expand(-1, padded.shape[1], -1, padded.shape[3]))
    return shifted.gather(3, columns[:, None, None, :].expand(-1, padded.shape[1], height, -1))


def random_changes(images: Tensor, generator: torch.Generator, *, max_pixels: int = 2, flip: bool = True) -> Tensor:
    """Apply `random_shift`, and flip each image horizontally with probability 1/2 if `flip`."""
    shifted = random_shift(images, generator, max_pixels=max_pixels) if max_pixels else images
    if not flip:
        return shifted
    flipped = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(flipped[:, None, None, None], shifted.flip(-1), shifted)
