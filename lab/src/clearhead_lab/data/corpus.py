"""Text to train language models on, word by word: WikiText (Merity et al. 2017) in its layouts on disk.

===============================  ===================================================================================
layout                           files
===============================  ===================================================================================
token files                      a folder with wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens, or train.txt ...
one Parquet file                 columns split (train, valid or validation, test) and text; a row is a line
Parquet files of Hugging Face    a folder with train-*.parquet, validation-*.parquet, test-*.parquet; column text
===============================  ===================================================================================

A line is split at white space and ends with the token `<eos>`. The vocabulary holds the words of the training split,
the most frequent first, as the adaptive softmax needs them. Other words of the validation and test splits become
`<unk>`.
"""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.parquet import open_parquet, readable_parquet
from clearhead.errors import InputError
from clearhead.storage import open_file

__all__ = ["EOS", "UNKNOWN", "Corpus", "read_corpus"]

EOS, UNKNOWN = "<eos>", "<unk>"
SPLITS = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
FILE_PATTERNS = ("wiki.{}.tokens", "wiki.{}.raw", "{}.tokens", "{}.txt")
TEXT_COLUMN, SPLIT_COLUMN = "text", "split"
CHARACTERS = 2**22
"""Characters of text that are split at once."""
LAYOUT = (
    "expected a folder with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (or train.txt, valid.txt and "
    "test.txt, or train-*.parquet ...), or one .parquet file with columns split and text (docs/data.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Token ids (n,) of three splits as int64, and the words that they stand for."""

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the vocabulary and the ids."""
        digest = hashlib.sha256("\n".join(self.vocabulary).encode())
        for ids in (self.train, self.valid, self.test):
            digest.update(len(ids).to_bytes(8, "little"))
            digest.update(ids.numpy().data)
        return digest.hexdigest()


def read_corpus(path: Path) -> Corpus:
    """Read a corpus in one of the layouts above. Raise InputError if a split is missing, empty or not text."""
    texts = _parquet_texts(path) if path.is_file() else _folder_texts(path)
    # A missing word gets the next number, by a call in C.
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    train = _encode(texts["train"], numbers.__getitem__)
    numbers.default_factory = None
    words, rank = _by_frequency(train, numbers)
    unknown = words.setdefault(UNKNOWN, len(words))
    ids = {"train": torch.from_numpy(rank[train])}
    for split in ("valid", "test"):
        ids[split] = torch.from_numpy(_encode(texts[split], lambda word: words.get(word, unknown)))
    for split, tokens in ids.items():
        if not bool(tokens.ne(words.get(EOS, -1)).any()):
            raise InputError(f"{path} has no words in the split {split}; {LAYOUT}")
    return Corpus(name=path.stem if path.is_file() else path.name, vocabulary=tuple(words), **ids)


def _encode(texts: Iterable[str], number: Callable[[str], int]) -> NDArray[np.int64]:
    """Return the number of each word and of each end of a line. Each text consists of whole lines."""
    ids = array("q")
    for text in texts:
        ids.extend(map(number, text.replace("\n", f" {EOS} ").split()))
    return np.frombuffer(ids, dtype=np.int64) if ids else np.empty(0, np.int64)


def _by_frequency(ids: NDArray[np.int64], numbers: Mapping[str, int]) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return the words with their new ids, the most frequent first, and the new id of each old one."""
    order = np.argsort(-np.bincount(ids, minlength=len(numbers)), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    names = list(numbers)
    return {names[old]: new for new, old in enumerate(order)}, rank


def _folder_texts(folder: Path) -> dict[str, Iterator[str]]:
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; {LAYOUT}")
    texts = {}
    for split, names in SPLITS.items():
        files = [
            path for name in names for pattern in FILE_PATTERNS if (path := folder / pattern.format(name)).exists()
        ]
        parts = sorted(path for name in names for path in folder.glob(f"{name}-*.parquet"))
        if not files and not parts:
            raise InputError(f"{folder} has no file of the split {split}; {LAYOUT}")
        texts[split] = _file_texts(files[0]) if files else _row_texts(parts)
    return texts


def _file_texts(path: Path) -> Iterator[str]:
    """Yield the lines of a file, several at a time."""
    try:
        with open_file(path) as content, TextIOWrapper(content, encoding="utf-8", newline="\n") as file:
            while text := "".join(file.readlines(CHARACTERS)):
                if not text.endswith("\n"):
                    if path.name.startswith("wiki."):
                        raise InputError(f"{path} does not end with a line end: it is half copied; copy it again")
                    text += "\n"
                yield text
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it, or copy it again") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _parquet_texts(path: Path) -> dict[str, Iterator[str]]:
    if path.suffix != ".parquet":
        raise InputError(f"{path} is not a Parquet file; {LAYOUT}")
    open_parquet(path, [SPLIT_COLUMN, TEXT_COLUMN])
    return {split: _row_texts([path], names) for split, names in SPLITS.items()}


def _row_texts(paths: Iterable[Path], splits: Collection[str] | None = None) -> Iterator[str]:
    """Yield the lines of the rows with these splits. Rows are lines, with or without their line ends.

    Without line ends, an empty last row means that the file ended with a line end. It is not a line.
    """
    columns = [TEXT_COLUMN] if splits is None else [TEXT_COLUMN, SPLIT_COLUMN]
    last, with_ends = None, False
    for path in paths:
        with readable_parquet(path):
            for batch in open_parquet(path, columns).iter_batches(columns=columns):
                rows = batch[TEXT_COLUMN].to_pylist()
                if splits is not None:
                    names = batch[SPLIT_COLUMN].to_pylist()
                    rows = [row for row, name in zip(rows, names, strict=True) if name in splits]
                if not all(isinstance(row, str) for row in rows):
                    raise InputError(f"{path} has a row in column {TEXT_COLUMN!r} that is not text")
                with_ends = with_ends or any(row.endswith("\n") for row in rows)
                rows = rows if last is None else [last, *rows]
                last = rows.pop() if rows else None
                yield "".join(row if row.endswith("\n") else f"{row}\n" for row in rows)
    if last or (last is not None and with_ends):
        yield last if last.endswith("\n") else f"{last}\n"
