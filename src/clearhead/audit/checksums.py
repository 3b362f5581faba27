"""SHA-256 of what an audit is made from: weights, configuration and batches, as they are in memory."""

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.interfaces.placement import full_weights
from clearhead.storage import sha256_of_file

__all__ = ["BatchChecksum", "config_checksum", "file_checksum", "source_checksum", "text_checksum", "weight_checksums"]

_NOT_CONTENT = ("_name_or_path", "name_or_path", "transformers_version")
"""Keys of a configuration that say where it was read and which version wrote it."""


def weight_checksums(model: nn.Module) -> dict[str, str]:
    """Return the checksum of every entry of the model's state dict, by name."""
    checksums = {}
    for name, value in full_weights(model):
        digest = hashlib.sha256()
        _add(digest, value)
        checksums[name] = digest.hexdigest()
    return checksums


def config_checksum(model: nn.Module) -> str | None:
    """Return the checksum of the model's configuration; None for a model without one."""
    config: Any = getattr(model, "config", None)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        plain = dataclasses.asdict(config)
    elif hasattr(config, "to_dict"):
        plain = config.to_dict()
    else:
        return None
    plain = {name: value for name, value in plain.items() if name not in _NOT_CONTENT}
    return text_checksum([json.dumps(plain, sort_keys=True, default=str)])


@functools.cache
def source_checksum() -> str:
    """Return the checksum of Clearhead's own code, which distinguishes two states with the same version number."""
    folder = Path(__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    return text_checksum(f"{file.relative_to(folder).as_posix()} {sha256_of_file(file)}" for file in files)


def file_checksum(function: Callable[..., Any]) -> str:
    """Return the checksum of the file that defines a function; "" without one, as in a notebook."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return sha256_of_file(Path(code.co_filename)) if code and Path(code.co_filename).is_file() else ""


def text_checksum(texts: Iterable[str]) -> str:
    """Return the checksum of texts and of where each ends."""
    digest = hashlib.sha256()
    for text in texts:
        _add(digest, text)
    return digest.hexdigest()


class BatchChecksum:
    """The checksum of the batches that were iterated over: keys, dtypes, shapes and numbers."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches and add each to the checksum."""
        for batch in batches:
            _add(self._digest, batch)
            yield batch
            del batch  # or it would stay in memory while the next one is made

    def hexdigest(self) -> str:
        """Return the checksum of the batches so far."""
        return self._digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value with its type and size, so that no two values add the same bytes. Unknown objects add their type."""
    if isinstance(value, Tensor):
        _add_tensor(digest, value.detach())
    elif isinstance(value, np.ndarray) and value.dtype.hasobject is False:
        digest.update(f"array {value.dtype.str} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)}\n".encode())
        for key, entry in value.items():
            _add(digest, key)
            _add(digest, entry)
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)}\n".encode())
        for entry in value:
            _add(digest, entry)
    elif isinstance(value, str | bytes):
        content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(f"{type(value).__name__} {len(content)}\n".encode() + content)
    elif value is None or isinstance(value, bool | int | float | complex):
        digest.update(f"{type(value).__name__} {value!r}\n".encode())
    else:
        digest.update(f"object {type(value).__module__}.{type(value).__qualname__}\n".encode())


def _add_tensor(digest: Any, tensor: Tensor) -> None:
    if tensor.is_nested:
        _add(digest, list(tensor.unbind()))
        return
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    digest.update(f"tensor {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    if tensor.is_meta or tensor.is_quantized or not tensor.numel():
        return
    # Reshaped first: a tensor of no axes cannot be viewed as bytes.
    digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
