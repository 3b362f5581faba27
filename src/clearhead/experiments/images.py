"""Images with labels, from their standard layouts on disk. Nothing is unpickled.

=========================  ==============================================================================
layout                     files
=========================  ==============================================================================
IDX (MNIST and its kin)    train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...; each plain or .gz
CIFAR-10, binary version   data_batch_1.bin to data_batch_5.bin, test_batch.bin
arrays                     one .npz with x_train, y_train, x_test, y_test
=========================  ==============================================================================

Without files there are scikit-learn's digits, which come inside its wheel.
"""

import gzip
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError

__all__ = ["ImageSet", "digits", "read_images"]

IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST = "test_batch.bin"
CIFAR_ROW = 1 + 3 * 32 * 32
DIGITS_TEST = 360
"""The last fifth of the digits: other writers than the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Images (n, channels, y, x) as bytes and their labels (n,) from 0 to classes - 1, in two parts."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) != len(labels):
                raise InputError(f"{self.name} has {len(images)} {part} images and {len(labels)} labels for them")
            if not len(images):
                raise InputError(f"{self.name} has no {part} images")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"{self.name} has training images {tuple(self.train_images.shape[1:])} and "
                f"test images {tuple(self.test_images.shape[1:])}; they must be of one size"
            )
        if int(self.test_labels.max()) >= self.classes:
            raise InputError(f"{self.name} has the test label {int(self.test_labels.max())}, which is never trained")

    @property
    def classes(self) -> int:
        """How many classes the labels name."""
        return int(self.train_labels.max()) + 1


def read_images(path: Path) -> ImageSet:
    """The images of a folder in a layout above, or of one .npz file. The layout is told by the names of the files."""
    if path.is_file():
        return _read_arrays(path)
    if not path.is_dir():
        raise InputError(
            f"there is no folder {path}; give one with IDX files or CIFAR-10's .bin files, or an .npz file"
        )
    if any(_idx_file(path, stem) is not None for stem in IDX.values()):
        return ImageSet(name=path.name, **{part: _read_idx(path, stem) for part, stem in IDX.items()})
    if any((path / name).exists() for name in (*CIFAR_TRAIN, CIFAR_TEST)):
        return _read_cifar(path)
    if any(path.glob("data_batch_*")):
        raise InputError(f"{path} holds the pickled CIFAR-10, which could run code; take the binary version (.bin)")
    raise InputError(f"{path} holds neither IDX files (train-images-idx3-ubyte.gz ...) nor data_batch_1.bin ...")


def digits() -> ImageSet:
    """1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak 1998), from scikit-learn's wheel."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("the digits come with scikit-learn; pip install scikit-learn, or name other images") from None
    stored = load_digits()
    images = torch.from_numpy(np.rint(stored.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(stored.target.astype(np.int64))
    return ImageSet(
        name="digits",
        train_images=images[:-DIGITS_TEST],
        train_labels=labels[:-DIGITS_TEST],
        test_images=images[-DIGITS_TEST:],
        test_labels=labels[-DIGITS_TEST:],
    )


def _idx_file(folder: Path, stem: str) -> Path | None:
    return next((folder / name for name in (stem, f"{stem}.gz") if (folder / name).exists()), None)


def _read_idx(folder: Path, stem: str) -> Tensor:
    """One IDX file of bytes: two zeros, the type 8, how many axes, their lengths, and the entries."""
    path = _idx_file(folder, stem)
    if path is None:
        raise InputError(f"{folder} lacks {stem} or {stem}.gz; an IDX set has {', '.join(IDX.values())}")
    try:
        stored = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    axes = 3 if "idx3" in stem else 1
    if stored[:4] != bytes([0, 0, 8, axes]) or len(stored) < 4 + 4 * axes:
        raise InputError(f"{path} is no IDX file of bytes with {axes} axes; is it complete, and the right one?")
    shape = tuple(int.from_bytes(stored[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    entries = np.frombuffer(stored, dtype=np.uint8, offset=4 + 4 * axes)
    if entries.size != int(np.prod(shape)):
        raise InputError(f"{path} announces {shape} bytes and holds {entries.size}; it is not complete")
    found = torch.from_numpy(entries.reshape(shape).copy())
    return found[:, None] if axes == 3 else found.long()


def _read_cifar(folder: Path) -> ImageSet:
    train = [_cifar_rows(folder / name) for name in CIFAR_TRAIN]
    test = _cifar_rows(folder / CIFAR_TEST)
    rows = torch.cat(train)
    return ImageSet(
        name=folder.name,
        train_images=rows[:, 1:].view(-1, 3, 32, 32),
        train_labels=rows[:, 0].long(),
        test_images=test[:, 1:].view(-1, 3, 32, 32),
        test_labels=test[:, 0].long(),
    )


def _cifar_rows(path: Path) -> Tensor:
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; CIFAR-10 has {len(CIFAR_TRAIN)} + 1 files") from None
    if not stored or len(stored) % CIFAR_ROW:
        raise InputError(f"{path} has {len(stored)} bytes, which are no rows of a label and 32 x 32 x 3 pixels")
    return torch.from_numpy(np.frombuffer(stored, dtype=np.uint8).reshape(-1, CIFAR_ROW).copy())


def _read_arrays(path: Path) -> ImageSet:
    wanted = ("x_train", "y_train", "x_test", "y_test")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no .npz file; it needs one with {', '.join(wanted)}")
    try:
        with np.load(path, allow_pickle=False) as stored:
            lacking = [name for name in wanted if name not in stored]
            arrays = {name: stored[name] for name in wanted if name not in lacking}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if lacking:
        raise InputError(f"{path} has no {lacking[0]}; it needs {', '.join(wanted)}")
    return ImageSet(
        name=path.stem,
        train_images=_channels_first(path, arrays["x_train"]),
        train_labels=torch.from_numpy(arrays["y_train"].astype(np.int64)),
        test_images=_channels_first(path, arrays["x_test"]),
        test_labels=torch.from_numpy(arrays["y_test"].astype(np.int64)),
    )


def _channels_first(path: Path, images: NDArray[np.generic]) -> Tensor:
    """(n, y, x) or (n, y, x, channels) bytes as (n, channels, y, x)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InputError(f"{path} has images {images.shape} of {images.dtype}; bytes (n, y, x) or (n, y, x, channels)")
    found = torch.from_numpy(images)
    return found[:, None] if images.ndim == 3 else found.permute(0, 3, 1, 2).contiguous()
