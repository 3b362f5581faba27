"""Images as they might also have been: shifted by a few pixels, and mirrored."""

import torch
from torch import Tensor

__all__ = ["shifted", "shifted_and_mirrored"]


def shifted(images: Tensor, generator: torch.Generator, *, most: int = 2) -> Tensor:
    """Each image (b, c, y, x) moved by up to `most` pixels on either axis, by chance of its own; zeros come in."""
    b, _, height, width = images.shape
    wide = torch.nn.functional.pad(images, (most, most, most, most))
    down = torch.randint(0, 2 * most + 1, (b, 1), generator=generator) + torch.arange(height)
    right = torch.randint(0, 2 * most + 1, (b, 1), generator=generator) + torch.arange(width)
    rows = wide.gather(2, down[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3]))
    return rows.gather(3, right[:, None, None, :].expand(-1, wide.shape[1], height, -1))


def shifted_and_mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """As `shifted`, and each image mirrored with probability one half."""
    moved = shifted(images, generator)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(-1), moved)
