"""Text files as passages and as batches of tokens."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.models.encoding import Encode

__all__ = ["DEFAULT_TEXT", "default_passages", "read_passages", "text_batches"]

DEFAULT_TEXT = "default_text.txt"
"""36 short passages of several sentences each on unrelated topics, written for Clearhead."""


def default_passages() -> list[str]:
    """Return the passages of the default text."""
    return _passages(resources.files("clearhead.data").joinpath(DEFAULT_TEXT).read_text(encoding="utf-8"))


def read_passages(path: Path) -> list[str]:
    """Return the passages of a UTF-8 text file: paragraphs if it has blank lines, otherwise lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise InputError(f"cannot read the text {path}: {error.strerror}") from None
    passages = _passages(text)
    if not passages:
        raise InputError(f"{path} holds no text; give at least two passages, as lines or paragraphs")
    return passages


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


def text_batches(passages: Sequence[str], encode: Encode, *, batch_size: int) -> Iterator[dict[str, Any]]:
    """Encode `batch_size` passages at a time, lazily."""
    for first in range(0, len(passages), batch_size):
        yield dict(encode(passages[first : first + batch_size]))
