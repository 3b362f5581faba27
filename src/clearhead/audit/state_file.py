"""Files of sums: a tree of plain values and arrays, written atomically with a checksum, read back to the last bit.

A safetensors file holds one flat tensor for each dtype; the tree, with the position of each array, is JSON in its
metadata. So a state of ten thousand small arrays is written in milliseconds, and reading it runs no code.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.errors import InputError
from clearhead.records import RecordError, check_fields
from clearhead.storage import DamagedFileError, parse_json, read_tensors, write_tensors

__all__ = ["REMEDY", "read_state", "write_state"]

FORMAT = "clearhead-sums/5"
REMEDY = "delete it and audit again"
_ARRAY, _OBJECT, _TUPLE = "$array", "$object", "$tuple"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a tree of mappings, sequences, numbers, texts, arrays and dataclasses of these."""
    arrays: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}

    def pack(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            kind, start = value.dtype.name, sizes.get(value.dtype.name, 0)
            arrays.setdefault(kind, []).append(value.ravel())
            sizes[kind] = start + value.size
            return {_ARRAY: [kind, start, list(value.shape)]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: pack(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {_OBJECT: type(value).__name__, "fields": fields}
        if isinstance(value, Mapping):
            return {key: pack(entry) for key, entry in value.items()}
        if isinstance(value, tuple):
            return {_TUPLE: [pack(entry) for entry in value]}
        if isinstance(value, list):
            return [pack(entry) for entry in value]
        return value.item() if isinstance(value, np.generic) else value

    tree = json.dumps(pack(state))
    tensors = {kind: torch.from_numpy(np.concatenate(parts)) for kind, parts in arrays.items()}
    write_tensors(path, tensors, metadata={"format": FORMAT, "tree": tree})


def read_state(path: Path, types: Sequence[type] = ()) -> dict[str, Any]:
    """Return what `write_state` wrote.

    Raise FileNotFoundError if there is no file, and InputError if it is damaged or not a file of sums.

    types: dataclasses that it may hold
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a file of sums ({FORMAT}) of this version; delete it and audit again")
    known = {kind.__name__: kind for kind in types}

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return [unpack(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        if _ARRAY in value:
            kind, start, shape = value[_ARRAY]
            size = int(np.prod(shape))
            return tensors[kind].numpy()[start : start + size].reshape(shape).copy()
        if _TUPLE in value:
            entries = unpack(value[_TUPLE])
            if not isinstance(entries, list):
                raise TypeError(f"{entries!r} is not a list")
            return tuple(entries)
        if _OBJECT in value:
            return check_fields(known[value[_OBJECT]](**unpack(value["fields"])), path, remedy=REMEDY)
        return {key: unpack(entry) for key, entry in value.items()}

    try:
        state: dict[str, Any] = unpack(parse_json(metadata["tree"].encode(), path))
    except RecordError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read ({error}); {REMEDY}") from None
    return state
