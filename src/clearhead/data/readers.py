"""Readers of the files that hold the inputs of an audit: passages, images and sound. Other packages add readers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from clearhead.errors import InputError
from clearhead.loading.objects import error_line
from clearhead.registry import Registry

__all__ = ["READERS", "Kind", "Reader", "endings", "find_reader", "read_file"]

Kind = Literal["text", "images", "audio"]
"""The option of `clearhead audit` that names the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How files with certain endings are read.

    kind: the option that names such files
    endings: of their names, such as ".md", in lower case
    read: returns what a file holds, given its path. "text": the passages as a list; "images": an image as Pillow reads
        it; "audio", given a rate too: samples from -1 to 1 at that rate
    columns: True for tables, whose `read` is given the name of a column too, or None
    """

    kind: Kind
    endings: tuple[str, ...]
    read: Callable[..., Any]
    columns: bool = False


def _expected(name: str, unit: Any) -> str:
    return "" if isinstance(unit, Reader) and unit.kind in get_args(Kind) else "a Reader of text, images or audio"


READERS = Registry[Reader](
    "clearhead.readers",
    "reader",
    _expected,
    {
        "text": "clearhead.data.text:READER",
        "tables": "clearhead.data.tables:READER",
        "images": "clearhead.data.media:IMAGES",
        "audio": "clearhead.data.media:AUDIO",
    },
)


def endings(kind: Kind) -> tuple[str, ...]:
    """Return the endings of all files of a kind that can be read."""
    return tuple(ending for reader in READERS.usable().values() if reader.kind == kind for ending in reader.endings)


def find_reader(path: Path, kind: Kind) -> Reader:
    """Return the reader of a file, by its ending. A folder is a table, and a file with another ending plain text."""
    if kind == "text" and path.is_dir():
        return READERS.get("tables")
    readers = (reader for reader in READERS.usable().values() if reader.kind == kind)
    found = next((reader for reader in readers if path.suffix.lower() in reader.endings), None)
    if found is None and kind != "text":
        raise InputError(f"{path} ends in none of {', '.join(endings(kind))}")
    return found or READERS.get("text")


def read_file(path: Path, kind: Kind, *arguments: Any) -> Any:
    """Return what a file holds; raise InputError if it cannot be read. arguments: of `Reader.read`, after the path."""
    reader = find_reader(path, kind)
    try:
        return reader.read(path, *arguments)
    except InputError:
        raise
    except Exception as error:  # code of another package may raise anything
        raise InputError(f"cannot read {path}: {error_line(error)}") from error
