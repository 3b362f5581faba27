"""Tiny image sets on disk, in the layouts that the readers know."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="pillow writes the images")
Y, X = 11, 13


def pixels_of(number: int, y: int = Y, x: int = X) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (y, x, 3), dtype=np.uint8)


def encoded(values: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, kind)
    return buffer.getvalue()


def write_image(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(values))


def write_folder(root: Path, classes: Sequence[str], each: int = 3) -> Path:
    """Write `each` images per class; image i of all has the pixels of number i. Lossless, whatever the ending."""
    for c, name in enumerate(classes):
        for i in range(each):
            write_image(root / name / f"{name}_{i}.{'JPEG' if i % 2 else 'png'}", pixels_of(c * each + i))
    return root


def write_table(
    path: Path, columns: Mapping[str, Sequence[Any]], *, group: int = 3, metadata: Mapping[str, str] | None = None
) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow writes the Parquet files")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.table({name: arrow.array(list(values)) for name, values in columns.items()})
    parquet.write_table(table.replace_schema_metadata(metadata), path, row_group_size=group)
    return path


def trimap_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(1, 4, (Y, X), dtype=np.uint8)


def write_pets(root: Path, names: Mapping[str, Sequence[str]]) -> Path:
    for split, listed in names.items():
        lines = []
        for name in listed:
            number = int(name.rpartition("_")[2])
            write_image(root / "images" / f"{name}.jpg", pixels_of(number))
            write_image(root / "annotations" / "trimaps" / f"{name}.png", trimap_of(number))
            lines.append(f"{name} {number % 37 + 1} {number % 2 + 1} 1")
        (root / "annotations" / f"{split}.txt").write_text("# name class species breed\n" + "\n".join(lines) + "\n")
    return root


def write_ade20k(root: Path, names: Mapping[str, Sequence[str]]) -> Path:
    for split, listed in names.items():
        for number, name in enumerate(listed):
            mask = np.random.default_rng(number).integers(0, 151, (Y, X), dtype=np.uint8)
            write_image(root / "images" / split / f"{name}.jpg", pixels_of(number))
            write_image(root / "annotations" / split / f"{name}.png", mask)
    return root
