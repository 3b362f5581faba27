"""Text files as passages and as batches of tokens."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.data.readers import Reader, find_reader, read_file
from clearhead.errors import InputError
from clearhead.loading.encoding import Encode
from clearhead.storage import MAX_INPUT_BYTES, read_text

__all__ = ["DEFAULT_TEXT", "READER", "default_passages", "read_passages", "text_batches"]

DEFAULT_TEXT = "default_text.txt"
"""36 short passages of several sentences each on unrelated topics, written for Clearhead."""


def default_passages() -> list[str]:
    """Return the passages of the default text."""
    return _passages(resources.files("clearhead.data").joinpath(DEFAULT_TEXT).read_text(encoding="utf-8"))


def read_passages(path: Path, column: str | None = None) -> list[str]:
    """Return the passages of a UTF-8 text file, of a column of a table, or of what a reader of another package reads.

    Passages of a text file are its paragraphs if it has blank lines, otherwise its lines.
    """
    with_columns = find_reader(path, "text").columns
    if column is not None and not with_columns:
        raise InputError(f"{path} is read as plain text, which has no columns; leave --column out, or give a table")
    passages = read_file(path, "text", *([column] if with_columns else []))
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise InputError(f"the reader of {path} returns a {type(passages).__name__}; expected a list of passages")
    if not passages:
        raise InputError(f"{path} holds no text; give at least two passages, as lines, paragraphs or rows")
    return passages


def _read_text(path: Path) -> str:
    try:
        return read_text(path, max_bytes=MAX_INPUT_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"cannot read the text {path}: {error.strerror}") from None


def _passages(text: str) -> list[str]:
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    if "" not in lines:
        return [line for line in lines if line]
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [" ".join(paragraph) for paragraph in paragraphs if paragraph]


READER = Reader(kind="text", endings=(".txt",), read=lambda path: _passages(_read_text(path)))


def text_batches(passages: Sequence[str], encode: Encode, *, batch_size: int) -> Iterator[dict[str, Any]]:
    """Encode `batch_size` passages at a time, lazily."""
    for first in range(0, len(passages), batch_size):
        yield dict(encode(passages[first : first + batch_size]))
