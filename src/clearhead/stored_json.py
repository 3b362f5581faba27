"""JSON files that carry the SHA-256 of their content, written so that a reader never sees half a file.

The checksum is that of the content as JSON with sorted keys and without spaces; it is stored under the key "sha256".
It detects damage (a full disk, a flipped bit, an edit by hand), not an attacker, who can compute it too.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.records import read_record
from clearhead.storage import MAX_JSON_BYTES, DamagedFileError, WriteError, parse_json, read_bytes, write_bytes

__all__ = ["DamagedFileError", "load_cached", "read_json", "store", "write_json", "write_text"]

CHECKSUM = "sha256"


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: after a crash the path holds the old file or the new one, never a part of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}; choose another folder") from None
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping of plain values and its checksum, atomically. NaN and infinities are refused (ValueError)."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    write_text(path, json.dumps({**plain, CHECKSUM: _checksum(plain)}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file that `write_json` wrote.

    Raise FileNotFoundError if the file is missing. Raise DamagedFileError if it is not a regular file of JSON, has no
    checksum, or the checksum does not fit.
    """
    try:
        content = parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
    except InputError as error:
        raise DamagedFileError(f"{error}; the file is damaged: delete it and run the command again") from None
    if not isinstance(content, dict) or CHECKSUM not in content:
        raise DamagedFileError(f"{path} has no checksum; delete it and run the command again")
    if content.pop(CHECKSUM) != _checksum(content):
        raise DamagedFileError(f"{path} is damaged: its checksum does not fit; delete it and run the command again")
    return content


def load_cached(
    path: Path, key: Mapping[str, Any], *, notice: Callable[[str], None], kind: Any = Any
) -> dict[str, Any] | None:
    """Return what `store` wrote under the same key: {"key": ..., "result": ...}; None if there is no such file.

    A damaged file, or one whose result is not of the type `kind`, is never used; `notice` receives one line.
    """
    try:
        stored = read_json(path)
        if "result" not in stored or stored.get("key") != _plain(key):
            return None
        read_record(kind, stored["result"], path, remedy="delete it")
    except FileNotFoundError:
        return None
    except DamagedFileError:
        notice(f"{path} is damaged or has no checksum; measuring again")
        return None
    return stored


def store(path: Path, key: Mapping[str, Any], result: Any) -> Any:
    """Write a result under its key and return it as a later `load_cached` will."""
    write_json(path, {"key": key, "result": result})
    return _plain(result)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _checksum(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
