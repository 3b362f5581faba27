"""Encoded images in Parquet files, the layout of Hugging Face's image sets, read one row group at a time.

The images are in a column of bytes, or of bytes with a path. Labels are whole numbers in another column; masks are
encoded images. A process keeps the row groups that it read last, up to `CACHE_BYTES`. The order of training visits row
groups in a random order, a few at a time, and mixes the rows of those few: see `ImageTable.order`.
"""

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.decoding import CorruptImageError, decode_mask, decode_pixels
from clearhead.data.parquet import open_parquet, readable_parquet
from clearhead.errors import InputError
from clearhead_lab.data.masks import MaskCoding

IMAGE_COLUMNS = ("image", "img", "image_jpeg", "image_png", "image_bytes", "jpg", "png")
MASK_COLUMNS = ("mask", "mask_png", "annotation", "segmentation", "label_map")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls")
SPLIT_COLUMN = "split"
CACHE_BYTES = 64 * 2**20
"""Encoded images that a process keeps, and whose rows an order mixes: at least two row groups."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group: its file, its number there, its first row in the whole set, and the bytes of its columns."""

    file: int
    number: int
    first: int
    bytes: int


class ImageTable:
    """Images with labels or masks from Parquet files.

    target: the column of labels, or of masks if `coding` says which classes their values stand for
    splits: the values of the column split that are taken; None takes every row
    classes: the number of labels; default: the names that Hugging Face stores, or the largest label of the files + 1
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        image: str,
        target: str,
        coding: MaskCoding | None = None,
        splits: Collection[str] | None = None,
        classes: int | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or paths[0].stem
        self._paths, self._image, self._target, self._coding = tuple(paths), image, target, coding
        self._columns = [image, target] if coding else [image]
        self._groups: list[_Group] = []
        self._file_firsts: list[int] = []
        labels, kept, rows, named = [], [], 0, None
        for number, path in enumerate(paths):
            file = open_parquet(path, [image, target, *([SPLIT_COLUMN] if splits is not None else [])])
            named = named or _stored_names(file, target)
            self._file_firsts.append(rows)
            for index, size in enumerate(_group_bytes(file, self._columns)):
                self._groups.append(_Group(number, index, rows, size))
                rows += file.metadata.row_group(index).num_rows
            if coding is None:
                labels.append(_whole_numbers(path, file, target))
            if splits is not None:
                with readable_parquet(path):
                    column = file.read([SPLIT_COLUMN], use_threads=False).column(SPLIT_COLUMN).to_pylist()
                kept.append(np.array([value in splits for value in column], dtype=bool))
        self._rows = np.arange(rows) if splits is None else np.flatnonzero(np.concatenate(kept))
        if not len(self._rows):
            raise InputError(f"{paths[0]} has no rows{'' if splits is None else f' of the split {sorted(splits)[0]}'}")
        self._firsts = np.array([group.first for group in self._groups])
        self._labels = np.concatenate(labels) if labels else None
        self.classes = coding.classes if coding else self._check_labels(classes or named)
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._process = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        row = int(self._rows[index])
        number, name = self._locate(row)
        group, offset = self._read_group(number), row - self._groups[number].first
        pixels = decode_pixels(_content(group, self._image, offset, name), name=name)
        if self._coding is None:
            assert self._labels is not None
            return pixels, int(self._labels[row])
        mask = self._coding(decode_mask(_content(group, self._target, offset, name), name=name), name=name)
        if mask.shape != pixels.shape[1:]:
            raise CorruptImageError(
                f"the mask {name} has {tuple(mask.shape)} pixels, its image {tuple(pixels.shape[1:])}; remove the row"
            )
        return pixels, mask

    def order(self, generator: torch.Generator) -> Tensor:
        """Return a random order that reads each row group about once.

        The row groups are drawn in a random order. As many as fit into `CACHE_BYTES`, at least two, are taken together,
        and their rows drawn in a random order. If all fit, this is a random order of all rows.
        """
        bounds = np.searchsorted(self._rows, [*self._firsts, self._rows[-1] + 1])
        windows: list[list[int]] = [[]]
        for group in torch.randperm(len(self._groups), generator=generator).tolist():
            window = windows[-1]
            if len(window) >= 2 and sum(self._groups[g].bytes for g in [*window, group]) > CACHE_BYTES:
                windows.append([])
            windows[-1].append(group)
        order = []
        for window in windows:
            rows = torch.cat([torch.arange(int(bounds[g]), int(bounds[g + 1])) for g in sorted(window)])
            order.append(rows[torch.randperm(len(rows), generator=generator)])
        return torch.cat(order)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the files' names and sizes, of the rows and of the labels."""
        digest = hashlib.sha256(f"{self.classes} {self._columns} {self._target} {self._coding}".encode())
        for path in self._paths:
            digest.update(f"\0{path.name}\0{path.stat().st_size}".encode(errors="surrogateescape"))
        digest.update(self._rows.astype("<i8").tobytes())
        digest.update(b"" if self._labels is None else self._labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict(), "_process": 0}

    def _locate(self, row: int) -> tuple[int, str]:
        """Return the number of the row's group, and words for messages."""
        number = int(np.searchsorted(self._firsts, row, side="right")) - 1
        file = self._groups[number].file
        return number, f"in row {row - self._file_firsts[file]} of {self._paths[file]}"

    def _read_group(self, number: int) -> Any:
        if self._process != os.getpid():  # a forked worker does not share the file handles of its parent
            self._cache, self._process = OrderedDict(), os.getpid()
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        group = self._groups[number]
        path = self._paths[group.file]
        with readable_parquet(path):
            table = open_parquet(path).read_row_group(group.number, columns=self._columns, use_threads=False)
        self._cache[number] = table
        while len(self._cache) > 2 and sum(self._groups[g].bytes for g in self._cache) > CACHE_BYTES:
            self._cache.popitem(last=False)
        return table

    def _check_labels(self, classes: int | None) -> int:
        assert self._labels is not None
        classes = classes or int(self._labels.max()) + 1
        chosen = self._labels[self._rows]
        wrong = np.flatnonzero((chosen < 0) | (chosen >= classes))
        if len(wrong):
            _, name = self._locate(int(self._rows[wrong[0]]))
            hint = "; -1 marks rows without labels: choose another split" if chosen[wrong[0]] == -1 else ""
            raise InputError(f"the label {name} is {chosen[wrong[0]]}, outside 0 to {classes - 1}{hint}")
        return classes


def find_column(names: Collection[str], candidates: Sequence[str]) -> str | None:
    """Return the first candidate that is among the names."""
    return next((candidate for candidate in candidates if candidate in names), None)


def _group_bytes(file: Any, columns: Sequence[str]) -> list[int]:
    """Return the bytes of the columns in each row group."""
    sizes = []
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        chunks = (group.column(i) for i in range(group.num_columns))
        sizes.append(sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in columns))
    return sizes


def _whole_numbers(path: Path, file: Any, column: str) -> NDArray[np.int64]:
    with readable_parquet(path):
        values = file.read([column], use_threads=False).column(column)
    kind = str(values.type)
    if not kind.startswith(("int", "uint")) or values.null_count:
        missing = " with missing rows" if values.null_count else ""
        raise InputError(f"column {column!r} of {path} holds {kind}{missing}; expected labels as whole numbers from 0")
    return np.asarray(values.to_numpy(), dtype=np.int64)


def _stored_names(file: Any, column: str) -> int | None:
    """Return the number of class names that Hugging Face stores for a column of labels."""
    stored = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        return len(json.loads(stored)["info"]["features"][column]["names"]) if stored else None
    except (ValueError, KeyError, TypeError):
        return None


def _content(group: Any, column: str, row: int, name: str) -> bytes:
    """Return the encoded image of a row, stored as bytes or as bytes with a path."""
    value = group.column(column)[row].as_py()
    value = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(value, bytes):
        raise CorruptImageError(f"cannot read the image {name}: column {column!r} holds no bytes; remove the row")
    return value
