"""Images of cats and dogs with masks: the Oxford-IIIT Pet set (Parkhi et al. 2012) in its layout on disk.

================================  ===========================================================
file                              content
================================  ===========================================================
images/NAME.jpg                   an image of any size
annotations/trimaps/NAME.png      1 where the animal is, 2 background, 3 border or unclear
annotations/trainval.txt          lines of NAME, breed from 1, species (1 cat, 2 dog), a number
annotations/test.txt              the same
================================  ===========================================================
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearhead.data.decoding import open_image
from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.data.listed_images import read_pet_list

ANIMAL, BACKGROUND, BORDER = 1, 2, 3
NEAREST, BILINEAR = 0, 2  # Pillow's numbers of the methods


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedImages:
    """Images with labels, and for the test images masks (n, y, x) of the object and of the pixels that count."""

    images: ImageSet
    objects: Tensor
    counted: Tensor


def read_pets(folder: Path, *, size: int, progress: Callable[[int, int], None] | None = None) -> MaskedImages:
    """Read the set as squares of `size` pixels, labelled by species; its two lists are the training and test sets.

    Images and masks are rescaled without keeping their aspect ratio. An unreadable image or mask raises InputError.
    """
    splits = {split: read_pet_list(folder / "annotations" / f"{split}.txt") for split in ("trainval", "test")}
    total, done = sum(map(len, splits.values())), 0
    pixels: dict[str, list[Tensor]] = {split: [] for split in splits}
    trimaps: list[Tensor] = []
    for split, entries in splits.items():
        for pet in entries:
            pixels[split].append(_pixels(folder / "images" / f"{pet.name}.jpg", size))
            if split == "test":
                trimaps.append(_trimap(folder / "annotations" / "trimaps" / f"{pet.name}.png", size))
            done += 1
            if progress is not None:
                progress(done, total)
    labels = {split: torch.tensor([pet.species for pet in entries]) for split, entries in splits.items()}
    masks = torch.stack(trimaps)
    return MaskedImages(
        images=ImageSet(
            name=folder.name,
            train_images=torch.stack(pixels["trainval"]),
            train_labels=labels["trainval"],
            test_images=torch.stack(pixels["test"]),
            test_labels=labels["test"],
        ),
        objects=masks == ANIMAL,
        counted=masks != BORDER,
    )


def _pixels(path: Path, size: int) -> Tensor:
    image = open_image(path).convert("RGB")
    image = image.resize((size, size), resample=BILINEAR)
    return torch.from_numpy(np.array(image, dtype=np.uint8)).movedim(-1, 0)


def _trimap(path: Path, size: int) -> Tensor:
    image = open_image(path).resize((size, size), resample=NEAREST)
    values = torch.from_numpy(np.array(image, dtype=np.uint8))
    if values.ndim != 2 or not bool(((values >= ANIMAL) & (values <= BORDER)).all()):
        raise InputError(f"{path} is not a mask of 1 (animal), 2 (background) and 3 (border)")
    return values
