"""Images in one folder per class: ImageNet's layout, and that of ImageNet-C, -A, -R and -O.

A set of 1.3 million files is listed without a call of stat, and its names are kept in one string of bytes, so that it
is small in every worker.
"""

import hashlib
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearhead.data.decoding import decode_pixels
from clearhead.data.media import IMAGE_SUFFIXES
from clearhead.errors import InputError
from clearhead.storage import MAX_JSON_BYTES, read_text


class ImageFolder:
    """Images FOLDER/CLASS/**/*.jpg (or another ending of images) with the number of their class as label.

    class_names: the classes in the order of their numbers. Default: the folders, in the order of their names. A folder
    that is not among them raises InputError, and so does a folder without images.
    """

    def __init__(self, folder: Path, *, class_names: Sequence[str] | None = None, name: str | None = None) -> None:
        self.folder, self.name = folder, name or folder.name
        self._folders = class_folders(folder)
        names = self._folders if class_names is None else class_names
        numbers = {name: number for number, name in enumerate(names)}
        if len(numbers) < len(names):
            raise InputError(f"the class list for {folder} has a name twice; give each class once")
        for own in self._folders:
            if own not in numbers:
                raise InputError(
                    f"{folder / own} is not among the {len(names)} classes ({names[0]}, ...); correct the class list, "
                    "or remove the folder"
                )
        self.classes = len(names)
        self._numbers = np.array([numbers[own] for own in self._folders])
        files: list[bytes] = []
        starts = [0]
        for own in self._folders:
            listed = _list_images(folder / own)
            if not listed:
                raise InputError(f"{folder / own} has no images: the copy is incomplete; copy it again or remove it")
            files += listed
            starts.append(len(files))
        self._starts = np.array(starts)
        self._ends = np.cumsum([len(file) for file in files])
        self._files = b"".join(files)

    def __len__(self) -> int:
        return len(self._ends)

    def path_of(self, index: int) -> Path:
        """Return the file of a sample."""
        return self.folder / self._folders[self._class_of(index)] / os.fsdecode(self._file(index))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return decode_pixels(self.path_of(index)), int(self._numbers[self._class_of(index)])

    def order(self, generator: torch.Generator) -> Tensor:
        """Return a random order of the samples."""
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the files' names, sizes and labels. It calls stat once per file."""
        digest = hashlib.sha256(str(self.classes).encode())
        for own, number, (start, stop) in zip(self._folders, self._numbers, pairwise(self._starts), strict=True):
            digest.update(f"\0{own}\0{number}\0{stop - start}".encode(errors="surrogateescape"))
            folder = os.fsencode(self.folder / own) + os.fsencode(os.sep)
            files = (self._file(index) for index in range(start, stop))
            sizes = [os.stat(folder + file).st_size for file in files]  # noqa: PTH116  # a Path costs 5 times the call
            digest.update(np.array(sizes, dtype="<i8").tobytes())
        digest.update(self._ends.astype("<i8").tobytes() + self._files)
        return digest.hexdigest()

    def _file(self, index: int) -> bytes:
        return self._files[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]

    def _class_of(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples; there is no sample {index}")
        return int(np.searchsorted(self._starts, index, side="right")) - 1


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted. Raise InputError if there are none."""
    try:
        with os.scandir(folder) as entries:
            listed = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from None
    folders = sorted(name for name, is_folder in listed if is_folder)
    if not folders:
        images = sum(name.lower().endswith(IMAGE_SUFFIXES) for name, _ in listed)
        content = f"has {images:,} images but no class folders" if images else "has no class folders"
        raise InputError(f"{folder} {content}; expected {folder.name}/CLASS/*.jpg, one folder per class")
    return folders


def read_class_list(path: Path) -> tuple[str, ...]:
    """Return the classes that a text file lists, one per line in the order of their numbers; the first word counts."""
    try:
        lines = read_text(path, max_bytes=MAX_JSON_BYTES).splitlines()
    except (OSError, InputError) as error:
        raise InputError(f"cannot read the class list {path}: {error}; give a text file, a class per line") from None
    names = tuple(line.split()[0] for line in lines if line.strip())
    if not names:
        raise InputError(f"the class list {path} is empty; give a text file with a class per line")
    return names


def _list_images(folder: Path) -> list[bytes]:
    """Return the images of a folder and its subfolders, relative to it, sorted."""
    found, pending = [], [os.fsencode(folder)]
    skipped = len(pending[0]) + len(os.sep)
    suffixes = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                if entry.name.lower().endswith(suffixes):
                    found.append(entry.path[skipped:])
                elif entry.is_dir():
                    pending.append(entry.path)
    return sorted(found)
