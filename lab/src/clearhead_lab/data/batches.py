"""Batches of images from disk, decoded and augmented in worker processes.

The order of an epoch is a function of the seed and the epoch, and a row of a batch is a function of the seed, the
epoch, the index of its sample and, if a batch repeats samples, the number of the copy. Neither depends on the number of
workers, on the number of processes that share a batch, nor on the batch that an epoch is resumed at.
"""

import hashlib
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from clearhead.data.decoding import CorruptImageError
from clearhead.errors import ClearheadError, InputError
from clearhead_lab.data.augmentation import Transform
from clearhead_lab.data.samples import Samples

__all__ = ["Batches", "OnCorrupt", "SampleBatches", "all_samples", "batch_rows", "check_repeats"]

OnCorrupt = Literal["refuse", "skip"]
TRIES = 100
"""Samples in a row that may be corrupt before a set that is read with "skip" is refused."""
ORDER, ROW = 0, 1
"""Purposes of random numbers: seeds of different purposes never coincide."""


@runtime_checkable
class Batches(Protocol):
    """The batches of training, the same whenever an epoch is read again: `steps` of `batch_size` rows in an epoch."""

    steps: int
    batch_size: int

    def epoch(self, number: int, *, start: int = 0, rows: slice = slice(None)) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches `start`, `start` + 1, ... of an epoch: of each batch the rows that this process takes."""


class SampleBatches:
    """Batches of images (b, c, y, x) from 0 to 1 with labels (b,) or masks (b, y, x) as int64.

    on_corrupt: "refuse" raises CorruptImageError, which names the image. "skip" names it to `notice` once and takes the
        sample that follows it in the set.
    workers: processes that decode; 0 decodes in this one
    repeats: how often a sample occurs in its batch, each time with an augmentation of its own (see `batch_rows`)
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        transform: Transform,
        repeats: int = 1,
        workers: int = 0,
        on_corrupt: OnCorrupt = "refuse",
        notice: Callable[[str], None] = warnings.warn,
    ) -> None:
        if not 1 <= batch_size <= len(samples):
            raise InputError(
                f"the batch size is {batch_size}; expected 1 to {len(samples)}, the number of samples of {samples.name}"
            )
        _check_choice(on_corrupt)
        check_repeats(repeats, batch_size=batch_size)
        self.samples, self.batch_size, self.seed, self.repeats = samples, batch_size, seed, repeats
        self.steps = len(samples) // batch_size
        self._transform, self._workers, self._on_corrupt, self._notice = transform, workers, on_corrupt, notice
        self._named: set[str] = set()

    def epoch(self, number: int, *, start: int = 0, rows: slice = slice(None)) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from `start` on; an incomplete last batch is left out."""
        order = self.samples.order(torch.Generator().manual_seed(_seed(self.seed, ORDER, number)))
        batches = batch_rows(order, batch_size=self.batch_size, repeats=self.repeats)[start:, rows]
        rows_of = _Rows(self.samples, self._transform, self.seed, number, self._on_corrupt, replace=True)
        for content in _load(rows_of, batches.tolist(), self._workers):
            for problem in content.problems:
                if problem not in self._named:
                    self._named.add(problem)
                    self._notice(f"skipped: {problem}")
            yield content.images, content.targets.long()

    def fingerprint(self) -> str:
        """Return a SHA-256 of the set, the batch size, the repeats and the seed."""
        settings = f"{self.samples.fingerprint()} {self.batch_size} {self.repeats} {self.seed}"
        return hashlib.sha256(settings.encode()).hexdigest()


def check_repeats(repeats: int, *, batch_size: int) -> None:
    """Raise InputError unless a sample can occur that often in a batch."""
    if not 1 <= repeats <= batch_size:
        raise InputError(f"expected repeats from 1 to the batch size of {batch_size}; got {repeats}")


def batch_rows(order: Tensor, *, batch_size: int, repeats: int) -> Tensor:
    """Return the rows of the batches of an epoch, (steps, batch_size), for a random order (n,) of the samples 0 to n-1.

    Row i + n c is copy c of sample i. Each sample of a batch occurs `repeats` times in it (repeated augmentation:
    Hoffer et al. 2020, arXiv 1901.09335); where `repeats` does not divide the batch size, the last ones occur less
    often. An epoch has as many rows as without repeats, hence fewer samples, as in DeiT.

    A batch has all its samples once before it repeats them: neighbours, which mixup mixes, are different samples, and
    processes get different copies.
    """
    steps, samples = len(order) // batch_size, math.ceil(batch_size / repeats)
    row = torch.arange(batch_size)
    return order[: steps * samples].view(steps, samples)[:, row % samples] + len(order) * (row // samples)


def all_samples(
    samples: Samples,
    *,
    batch_size: int,
    transform: Transform,
    workers: int = 0,
    on_corrupt: OnCorrupt = "refuse",
    notice: Callable[[str], None] = warnings.warn,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every sample once, in the order of the set, for evaluation. "skip" leaves corrupt images out."""
    _check_choice(on_corrupt)
    indices = [
        list(range(first, min(first + batch_size, len(samples)))) for first in range(0, len(samples), batch_size)
    ]
    rows_of = _Rows(samples, transform, 0, 0, on_corrupt, replace=False)
    for content in _load(rows_of, indices, workers):
        for problem in content.problems:
            notice(f"skipped: {problem}")
        if len(content.images):
            yield content.images, content.targets.long()


@dataclass(frozen=True, slots=True)
class _Content:
    """A batch, and what was wrong with images that were skipped; or the error that ends the epoch."""

    images: Tensor
    targets: Tensor
    problems: tuple[str, ...]
    error: ClearheadError | None = None


class _Rows:
    """The decoded and augmented rows of a batch, numbered as by `batch_rows`; torch's loader calls `__getitems__`."""

    def __init__(
        self, samples: Samples, transform: Transform, seed: int, epoch: int, on_corrupt: OnCorrupt, *, replace: bool
    ) -> None:
        self._samples, self._transform, self._seed, self._epoch = samples, transform, seed, epoch
        self._on_corrupt, self._replace = on_corrupt, replace

    def __len__(self) -> int:
        return len(self._samples)

    def __getitems__(self, indices: Sequence[int]) -> _Content:
        """Return a batch. Our errors are returned: torch would replace their one line by the worker's traceback."""
        problems: list[str] = []
        rows = []
        with _restored_generators():
            for index in indices:
                try:
                    row = self._row(index, problems)
                except ClearheadError as error:
                    return _Content(torch.empty(0), torch.empty(0), (), error=error)
                if row is not None:
                    rows.append(row)
        if not rows:
            return _Content(torch.empty(0), torch.empty(0), tuple(problems))
        shapes = sorted({tuple(image.shape) for image, _ in rows})
        if len(shapes) > 1:
            text = f"{self._samples.name} has images of different sizes, {shapes[0]} and {shapes[1]}; resize them"
            return _Content(torch.empty(0), torch.empty(0), (), error=InputError(text))
        images = default_collate([image for image, _ in rows])
        targets = default_collate([target for _, target in rows])
        return _Content(images, targets, tuple(problems))

    def _row(self, index: int, problems: list[str]) -> tuple[Tensor, int | Tensor] | None:
        for attempt in range(TRIES):
            used = (index + attempt) % len(self._samples)
            try:
                image, target = self._samples[used]
            except CorruptImageError as error:
                if self._on_corrupt == "refuse":
                    raise
                problems.append(str(error))
                if not self._replace:
                    return None
                continue
            # Seeded by the row, so that two rows that use the same image augment it differently.
            _seed_generators(_seed(self._seed, ROW, self._epoch, index))
            return self._transform(image, target)
        raise CorruptImageError(
            f"{TRIES} images of {self._samples.name} in a row are corrupt, the last: {problems[-1]}"
        )


def _load(rows: _Rows, batches: list[list[int]], workers: int) -> Iterator[_Content]:
    loader: DataLoader[Any] = DataLoader(
        rows,  # type: ignore[arg-type]  # it has __getitems__, which returns a whole batch
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # the default one is the model's, for example of its dropout
    )
    for content in loader:
        if content.error is not None:
            raise content.error
        yield content


def _unchanged(content: Any) -> Any:
    return content


def _check_choice(on_corrupt: str) -> None:
    if on_corrupt not in ("refuse", "skip"):
        raise InputError(f"on_corrupt is {on_corrupt!r}; choose refuse or skip")


def _seed(*numbers: int) -> int:
    """Return a seed of 64 bits that depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _seed_generators(seed: int) -> None:
    """Seed the generators that transforms draw from. The generators of other devices stay as they are."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Give the generators of this process their states back."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
