"""Sets of images on disk with labels or masks, decoded one at a time, and the function that opens them.

- folder: PATH/SPLIT/CLASS/x.jpg (ImageNet-1K), or PATH/CLASS/x.jpg without a split (ImageNet-A, -R, -O).
- parquet: PATH/SPLIT-x.parquet, PATH/data/SPLIT-x.parquet, or one file with a column split; images are encoded.
- ade20k: PATH/images/training and PATH/annotations/training, and validation; or a Parquet file with such masks.
- pets: PATH/images, PATH/annotations/trimaps, PATH/annotations/trainval.txt and test.txt; or a Parquet file.

A split may be part of a path, such as gaussian_noise/3 of ImageNet-C.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.data.parquet import open_parquet
from clearhead.errors import InputError
from clearhead_lab.data.image_folder import ImageFolder, class_folders, read_class_list
from clearhead_lab.data.image_table import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    MASK_COLUMNS,
    SPLIT_COLUMN,
    ImageTable,
    find_column,
)
from clearhead_lab.data.listed_images import open_ade20k, open_pets
from clearhead_lab.data.masks import ADE20K, IGNORED, PETS, PETS_WITH_BORDER, MaskCoding, plain_coding

__all__ = ["IGNORED", "Layout", "Samples", "open_samples"]

Layout = Literal["auto", "folder", "parquet", "ade20k", "pets"]
SPLIT_NAMES = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
"""The names of a split in the layouts, the usual one first."""
EXPECTED = (
    "expected PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg (ImageNet), PATH/train-*.parquet (Hugging Face), "
    "PATH/images/training and PATH/annotations/training (ADE20K), or PATH/images and PATH/annotations/trainval.txt "
    "(Oxford Pets). Nothing is downloaded; docs/data.md, data for training, says how to get each"
)


@runtime_checkable
class Samples(Protocol):
    """A set of images with labels or masks. It decodes an image when it is indexed, and is small to send to workers."""

    name: str
    classes: int

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        """Return an image (c, y, x) as bytes in its stored size, and its label or its mask (y, x) as bytes.

        Raise CorruptImageError, which names the file or row, if it cannot be decoded.
        """

    def order(self, generator: torch.Generator) -> Tensor:
        """Return a random order of the samples that this set reads fast."""

    def fingerprint(self) -> str:
        """Return a SHA-256 of names, sizes and labels, without decoding images."""


def open_samples(
    path: Path,
    *,
    split: str | None,
    layout: Layout = "auto",
    target: str = "auto",
    class_list: Sequence[str] | Path | None = None,
    border_class: bool = False,
) -> Samples:
    """Open a set of images. Nothing is decoded or downloaded.

    split: train, val or test (other spellings of the layouts are found), part of a path, or None for the whole set
    target: a column of a table, or mask, breed or species of Oxford Pets; by default masks where there are some
    class_list: the classes in the order of their numbers, or a text file that lists them
    border_class: whether the border of Oxford Pets is class 2 instead of `IGNORED`

    Raise InputError, with the layout expected, if the folder or a part of it is missing.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; {EXPECTED}")
    tables = _tables(path, split)
    if layout == "auto":
        layout = "parquet" if tables else _folder_layout(path)
    names = read_class_list(class_list) if isinstance(class_list, Path) else class_list
    if tables:
        return _open_tables(path, tables, split, layout, target, None if names is None else len(names), border_class)
    if layout == "parquet":
        raise InputError(f"{path} has no Parquet files of the split {split}; {EXPECTED}")
    if layout == "folder":
        return _open_folder(path, split, names)
    if split is None:
        raise InputError(f"{path} is divided into splits; choose train, or {'val' if layout == 'ade20k' else 'test'}")
    if layout == "ade20k":
        return open_ade20k(path, {"train": "training", "val": "validation"}.get(split, split))
    return open_pets(
        path,
        {"train": "trainval"}.get(split, split),
        target="mask" if target == "auto" else target,
        border_class=border_class,
    )


def _folder_layout(path: Path) -> Layout:
    if not path.is_dir():
        raise InputError(f"{path} is neither a folder nor a .parquet file; {EXPECTED}")
    if (path / "annotations" / "trainval.txt").exists() or (path / "annotations" / "trimaps").exists():
        return "pets"
    if (path / "annotations" / "training").exists() or (path / "images" / "training").exists():
        return "ade20k"
    return "folder"


def _open_folder(path: Path, split: str | None, names: Sequence[str] | None) -> ImageFolder:
    if split is None:
        return ImageFolder(path, class_names=names)
    folders = [path / name for name in SPLIT_NAMES.get(split, (split,))]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise InputError(f"{path} has no folder {split}; {EXPECTED}")
    if names is None and split in SPLIT_NAMES and (path / "train").is_dir():
        names = class_folders(path / "train")  # a split without some class keeps the numbers of training
    return ImageFolder(folder, class_names=names, name=f"{path.name} {split}")


def _tables(path: Path, split: str | None) -> list[Path]:
    """Return the Parquet files of a split. Raise InputError if one of a numbered series is missing."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for name in () if split is None else SPLIT_NAMES.get(split, (split,)):
        for folder in (path, path / "data"):
            if files := sorted([*folder.glob(f"{name}-*.parquet"), *folder.glob(f"{name}.parquet")]):
                _check_series(files)
                return files
    return []


def _check_series(files: Sequence[Path]) -> None:
    listed = {file.name for file in files}
    for file in files:
        if match := re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\.parquet)", file.name):
            before, number, of, total, after = match.groups()
            for i in range(int(total)):
                wanted = f"{before}{i:0{len(number)}d}{of}{total}{after}"
                if wanted not in listed:
                    raise InputError(f"{file.parent / wanted} is missing: the copy is incomplete; copy it again")


def _open_tables(
    path: Path,
    files: Sequence[Path],
    split: str | None,
    layout: Layout,
    target: str,
    classes: int | None,
    border_class: bool,
) -> ImageTable:
    names = open_parquet(files[0]).schema_arrow.names
    image = find_column(names, IMAGE_COLUMNS)
    if image is None:
        raise InputError(f"{files[0]} has no column of images ({', '.join(IMAGE_COLUMNS)}); it has {', '.join(names)}")
    mask = find_column(names, MASK_COLUMNS)
    chosen = (mask or find_column(names, LABEL_COLUMNS)) if target == "auto" else mask if target == "mask" else target
    if chosen is None or chosen not in names:
        raise InputError(f"{files[0]} has no column for the target {target!r}; it has {', '.join(names)}")
    in_column = split is not None and path.is_file()
    if in_column and SPLIT_COLUMN not in names:
        raise InputError(f"{files[0]} has no column 'split', so there is no split {split!r}; give one file per split")
    return ImageTable(
        files,
        image=image,
        target=chosen,
        coding=_mask_coding(files[0], names, layout, classes, border_class) if chosen == mask else None,
        splits=SPLIT_NAMES.get(split, (split,)) if split is not None and in_column else None,
        classes=classes,
        name=path.stem if split is None else f"{path.stem} {split}",
    )


def _mask_coding(
    path: Path, names: Sequence[str], layout: Layout, classes: int | None, border_class: bool
) -> MaskCoding:
    if layout == "pets" or (layout == "parquet" and "breed" in names and "species" in names):
        return PETS_WITH_BORDER if border_class else PETS
    if layout == "ade20k":
        return ADE20K
    if classes is None:
        raise InputError(f"{path} does not say which classes its masks have; give the layout or a class list")
    return plain_coding(classes)
