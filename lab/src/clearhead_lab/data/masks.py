"""Masks of semantic segmentation: which stored value stands for which class."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.decoding import CorruptImageError

IGNORED = 255
"""The class of pixels that count neither in the loss nor in a score."""
IMPOSSIBLE = -1


@dataclass(frozen=True, slots=True)
class MaskCoding:
    """The classes of the values of a stored mask: `ranges` are (first value, first class, number of values)."""

    classes: int
    ranges: tuple[tuple[int, int, int], ...]
    ignored: tuple[int, ...]

    def __call__(self, mask: Tensor, *, name: str) -> Tensor:
        """Return the classes (y, x) as bytes, `IGNORED` where no class counts. Raise for a value without a class."""
        table = _table(self)
        classes = np.take(table, mask.numpy())
        if classes.min(initial=0) == IMPOSSIBLE:
            value = int(mask.numpy()[classes == IMPOSSIBLE][0])
            allowed = np.flatnonzero(table != IMPOSSIBLE)
            raise CorruptImageError(
                f"the mask {name} has the value {value}; expected {len(allowed)} values, {allowed[0]} to {allowed[-1]}"
            )
        return torch.from_numpy(classes.astype(np.uint8))


@cache
def _table(coding: MaskCoding) -> NDArray[np.int16]:
    """Return the class of each of the 256 values."""
    table = np.full(256, IMPOSSIBLE, dtype=np.int16)
    for value, first, number in coding.ranges:
        table[value : value + number] = np.arange(first, first + number)
    table[list(coding.ignored)] = IGNORED
    return table


ADE20K = MaskCoding(150, ranges=((1, 0, 150),), ignored=(0,))
"""SceneParse150: 1 to 150 are classes, 0 is unlabelled."""
PETS = MaskCoding(2, ranges=((1, 0, 2),), ignored=(3,))
"""Oxford-IIIT Pet: 1 the animal, 2 the background, 3 the border, which is ignored."""
PETS_WITH_BORDER = MaskCoding(3, ranges=((1, 0, 3),), ignored=())


def plain_coding(classes: int) -> MaskCoding:
    """Return the coding of masks that hold their classes from 0, and 255 where ignored."""
    return MaskCoding(classes, ranges=((0, 0, classes),), ignored=(IGNORED,))
