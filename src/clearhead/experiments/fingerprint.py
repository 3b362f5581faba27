"""Fingerprints, by which a kept measurement is known to be of the same things."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["of_code", "of_tensors"]


def of_tensors(tensors: Iterable[Tensor], *, source: str = "") -> str:
    """Of shapes, dtypes and every entry, and of where they come from."""
    digest = hashlib.sha256(source.encode())
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@functools.cache
def of_code(room: str = "") -> str:
    """Of the package's own source, or of one room of it, as its version does not change with every line."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted((root / room).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
