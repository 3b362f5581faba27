"""Images with masks in the layouts of ADE20K (Zhou et al. 2017) and Oxford-IIIT Pet (Parkhi et al. 2012) on disk.

=============  ===========================================================================================
set            files
=============  ===========================================================================================
ADE20K         images/training/NAME.jpg, annotations/training/NAME.png, and the same for validation
Oxford Pets    images/NAME.jpg, annotations/trimaps/NAME.png, annotations/trainval.txt, annotations/test.txt
=============  ===========================================================================================

A line of Pets' lists is NAME, breed from 1, species (1 cat, 2 dog), and a number.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearhead.data.decoding import CorruptImageError, decode_mask, decode_pixels
from clearhead.errors import InputError
from clearhead.storage import MAX_JSON_BYTES, read_text
from clearhead_lab.data.masks import ADE20K, PETS, PETS_WITH_BORDER, MaskCoding

BREEDS, SPECIES = 37, 2


class ListedImages:
    """Images by their files, each with a label or the file of a mask."""

    def __init__(
        self,
        name: str,
        folder: Path,
        images: Sequence[str],
        targets: Sequence[int | str],
        *,
        classes: int,
        coding: MaskCoding | None = None,
    ) -> None:
        self.name, self.folder, self.classes = name, folder, classes
        self._images, self._targets, self._coding = tuple(images), tuple(targets), coding

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        pixels, target = decode_pixels(self.folder / self._images[index]), self._targets[index]
        if isinstance(target, int) or self._coding is None:
            return pixels, int(target)
        path = self.folder / target
        mask = self._coding(decode_mask(path), name=str(path))
        if mask.shape != pixels.shape[1:]:
            raise CorruptImageError(
                f"the mask {path} has {tuple(mask.shape)} pixels, its image {tuple(pixels.shape[1:])}; copy both again"
            )
        return pixels, mask

    def order(self, generator: torch.Generator) -> Tensor:
        """Return a random order of the samples."""
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, sizes and labels. It calls stat once per file."""
        digest = hashlib.sha256(f"{self.classes} {self._coding}".encode())
        for image, target in zip(self._images, self._targets, strict=True):
            files = (image, target) if isinstance(target, str) else (image,)
            try:
                sizes = [(self.folder / file).stat().st_size for file in files]
            except OSError as error:
                raise InputError(f"cannot read {error.filename}: {error.strerror}; copy the whole set again") from None
            digest.update(f"\0{image}\0{target}\0{sizes}".encode(errors="surrogateescape"))
        return digest.hexdigest()


def open_ade20k(folder: Path, split: str) -> ListedImages:
    """Open ADE20K's scene parsing set (ADEChallengeData2016); `split` is training or validation.

    0 in a stored mask is unlabelled and becomes `IGNORED`; 1 to 150 become 0 to 149.
    """
    images = _stems(folder / "images" / split, ".jpg")
    masks = _stems(folder / "annotations" / split, ".png")
    for stem in images:
        if stem not in masks:
            raise InputError(
                f"{folder / 'images' / split / stem}.jpg has no mask in annotations/{split}; copy both again"
            )
    names = sorted(images)
    return ListedImages(
        f"{folder.name} {split}",
        folder,
        [f"images/{split}/{stem}.jpg" for stem in names],
        [f"annotations/{split}/{stem}.png" for stem in names],
        classes=ADE20K.classes,
        coding=ADE20K,
    )


def open_pets(folder: Path, split: str, *, target: str = "mask", border_class: bool = False) -> ListedImages:
    """Open the Oxford-IIIT Pet set; `split` is trainval or test, `target` is mask, breed or species.

    Classes of masks: 0 the animal, 1 the background. The border is `IGNORED`, or class 2 with `border_class`.
    """
    pets = read_pet_list(folder / "annotations" / f"{split}.txt")
    images = [f"images/{pet.name}.jpg" for pet in pets]
    name = f"{folder.name} {split}"
    if target == "mask":
        coding = PETS_WITH_BORDER if border_class else PETS
        masks = [f"annotations/trimaps/{pet.name}.png" for pet in pets]
        return ListedImages(name, folder, images, masks, classes=coding.classes, coding=coding)
    if target not in ("breed", "species"):
        raise InputError(f"the Oxford-IIIT Pet set has no target {target!r}; choose mask, breed or species")
    labels = [pet.breed if target == "breed" else pet.species for pet in pets]
    return ListedImages(name, folder, images, labels, classes=BREEDS if target == "breed" else SPECIES)


@dataclass(frozen=True, slots=True)
class Pet:
    """A line of the Pet set's lists: the name of its files, its breed (0 to 36) and its species (0 cat, 1 dog)."""

    name: str
    breed: int
    species: int


def read_pet_list(path: Path) -> list[Pet]:
    """Read annotations/trainval.txt or annotations/test.txt."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give the folder of the Oxford-IIIT Pet set")
    pets = []
    for line in read_text(path, max_bytes=MAX_JSON_BYTES).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        plain = "/" not in fields[0] and "\\" not in fields[0] and not fields[0].startswith(".")
        known = len(fields) > 2 and fields[1] in map(str, range(1, BREEDS + 1)) and fields[2] in ("1", "2")
        if not known or not plain:
            raise InputError(f"{path} has a line without name, breed (1 to 37) and species (1 or 2): {line[:60]!r}")
        pets.append(Pet(fields[0], int(fields[1]) - 1, int(fields[2]) - 1))
    if not pets:
        raise InputError(f"{path} lists no image")
    return pets


def _stems(folder: Path, suffix: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            stems = {entry.name.removesuffix(suffix) for entry in entries if entry.name.endswith(suffix)}
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}; copy the whole set again") from None
    if not stems:
        raise InputError(f"{folder} has no {suffix} files; copy the whole set again")
    return stems
