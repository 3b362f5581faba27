"""Batches of tensors in memory. Their order and their random changes are functions of the seed, the epoch and the step.

Several processes share a step: each takes some rows of the same batch, so that the number of processes changes neither
the batch nor its augmentation.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead_lab.data.batches import batch_rows, check_repeats
from clearhead_lab.training.evaluation import as_pixels

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""A random change of a batch of images (b, c, y, x)."""

SEED_STRIDE = 1_000_003
"""Distance between the generator seeds of consecutive run seeds."""
ALL_ROWS = slice(None)


class TensorBatches:
    """Batches of byte images (n, c, y, x) and their targets, both in memory.

    augment: a random change of the images of a batch
    repeats: how often an image occurs in its batch, each time changed at random (see `batch_rows`)
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        *,
        batch_size: int,
        seed: int,
        augment: Augment | None = None,
        repeats: int = 1,
    ) -> None:
        if len(images) != len(targets) or not len(images):
            raise InputError(f"expected one target for each image; got {len(images)} images, {len(targets)} targets")
        self.images, self.targets, self.augment, self.seed, self.repeats = images, targets, augment, seed, repeats
        self.batch_size = min(batch_size, len(images))
        check_repeats(repeats, batch_size=self.batch_size)
        self.steps = len(images) // self.batch_size

    def epoch(self, number: int, *, start: int = 0, rows: slice = ALL_ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield these rows of the batches `start` and later of an epoch: images from 0 to 1, and targets."""
        order = torch.randperm(len(self.images), generator=seeded_generator(self.seed, 2 * number))
        batches = batch_rows(order, batch_size=self.batch_size, repeats=self.repeats) % len(self.images)
        for index in range(start, self.steps):
            chosen = batches[index]
            if self.augment is None:
                yield as_pixels(self.images[chosen[rows]]), self.targets[chosen[rows]]
                continue
            step = number * self.steps + index
            batch = self.augment(as_pixels(self.images[chosen]), seeded_generator(self.seed, 2 * step + 1))
            yield batch[rows], self.targets[chosen[rows]]


class TokenBatches:
    """Batches of consecutive tokens of a text: inputs (b, context), and the token after each as target.

    Every epoch cuts the text at another offset and takes the pieces in another order.
    """

    def __init__(self, tokens: Tensor, *, context: int, batch_size: int, seed: int) -> None:
        if len(tokens) < 2 * context + 1:
            raise InputError(
                f"expected at least {2 * context + 1} tokens for a context of {context}; got {len(tokens)}"
            )
        self.tokens, self.context, self.seed = tokens, context, seed
        self.pieces = (len(tokens) - context) // context  # one fewer than fit, for the offset
        self.batch_size = min(batch_size, self.pieces)
        self.steps = self.pieces // self.batch_size

    def epoch(self, number: int, *, start: int = 0, rows: slice = ALL_ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield these rows of the batches `start` and later of an epoch: tokens, and the tokens after them."""
        generator = seeded_generator(self.seed, 2 * number)
        offset = int(torch.randint(self.context, (), generator=generator))
        order = torch.randperm(self.pieces, generator=generator)
        places = torch.arange(self.context + 1)
        for index in range(start, self.steps):
            chosen = order[index * self.batch_size : (index + 1) * self.batch_size][rows]
            pieces = self.tokens[(offset + self.context * chosen)[:, None] + places]
            yield pieces[:, :-1], pieces[:, 1:]


def seeded_generator(seed: int, number: int) -> torch.Generator:
    """Return the generator with this number of a run with this seed."""
    return torch.Generator().manual_seed((seed * SEED_STRIDE + number) % 2**63)


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
