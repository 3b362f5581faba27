"""One column of text from a table: CSV, JSON lines, Parquet (opened and checked by pyarrow), or a Hugging Face dataset
folder on disk."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from clearhead.data.parquet import column_values, import_pyarrow, open_parquet
from clearhead.data.readers import Reader
from clearhead.errors import InputError
from clearhead.storage import MAX_INPUT_BYTES, MAX_JSON_BYTES, open_file, parse_json, read_bytes, read_text

__all__ = ["READER", "read_column"]

ROWS_AT_ONCE = 1024
MAX_FIELD = 2**31 - 1
"""Characters of a CSV field; Python's own limit of 131,072 is too low for documents."""


def read_column(path: Path, column: str | None) -> list[str]:
    """Return the texts of a column, one per row; empty rows are left out.

    Raise InputError, with the columns of the table, if `column` is None, missing, or not text.
    """
    with _readable(path):
        columns, read = _reader(path)
    if column is None:
        raise InputError(f"{path} is a table; choose a column with --column: {_listed(columns)}")
    if column not in columns:
        raise InputError(f"{path} has no column {column!r}; it has {_listed(columns)}")
    values: list[str | None] = []
    with _readable(path):
        for row, value in enumerate(read(column), start=1):
            if not isinstance(value, str | None):
                raise InputError(
                    f"column {column!r} of {path} has a {type(value).__name__} in row {row}, not text; "
                    f"choose another: {_listed(columns)}"
                )
            values.append(value)
    return [text for value in values if (text := " ".join((value or "").split()))]


READER = Reader(kind="text", endings=(".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"), read=read_column, columns=True)

Read = Callable[[str], Iterable[Any]]


def _reader(path: Path) -> tuple[list[str], Read]:
    """Return the names of the columns, and a function that reads one."""
    if path.is_dir():
        return _dataset(path)
    return {".parquet": _parquet, ".jsonl": _json_lines, ".ndjson": _json_lines}.get(path.suffix.lower(), _csv)(path)


def _csv(path: Path) -> tuple[list[str], Read]:
    csv.field_size_limit(MAX_FIELD)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","

    def read(column: str) -> Iterator[Any]:
        with rows() as table:
            yield from (row[column] for row in table)

    @contextmanager
    def rows() -> Iterator["csv.DictReader[str]"]:
        with open_file(path, max_bytes=MAX_INPUT_BYTES) as file:
            yield csv.DictReader(TextIOWrapper(file, encoding="utf-8-sig", newline=""), delimiter=delimiter)

    with rows() as table:
        names = table.fieldnames
    return list(names or ()), read


def _json_lines(path: Path) -> tuple[list[str], Read]:
    lines = read_text(path, max_bytes=MAX_INPUT_BYTES).splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} must have one JSON object per line; give other text as a .txt file")
    return list(dict.fromkeys(name for row in rows for name in row)), lambda column: (row.get(column) for row in rows)


def _parquet(path: Path) -> tuple[list[str], Read]:
    def read(column: str) -> Iterator[Any]:
        with open_parquet(path, texts=[column]) as file:
            yield from column_values(file.iter_batches(columns=[column], batch_size=ROWS_AT_ONCE), column, path)

    with open_parquet(path) as file:
        return file.schema_arrow.names, read


def _dataset(folder: Path) -> tuple[list[str], Read]:
    """Read what `Dataset.save_to_disk` of Hugging Face wrote: Arrow streams that state.json lists."""
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.name for path in folder.iterdir() if (path / "state.json").is_file())
        raise InputError(f"{folder} has several splits; give the folder of one: {_listed(splits)}")
    try:
        state = parse_json(read_bytes(folder / "state.json", max_bytes=MAX_JSON_BYTES), folder / "state.json")
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a dataset folder, as Dataset.save_to_disk writes it; give a text file or a table"
        ) from None
    try:
        files = [folder / Path(str(entry["filename"])).name for entry in state["_data_files"]]
    except (KeyError, TypeError):
        raise InputError(f"{folder / 'state.json'} does not list the files of a dataset; save it again") from None
    ipc = import_pyarrow("ipc")

    def batches() -> Iterator[Any]:
        for file in files:
            with open_file(file, max_bytes=MAX_INPUT_BYTES) as stream:
                yield from ipc.open_stream(stream)

    names: list[str] = []
    if files:
        with open_file(files[0], max_bytes=MAX_INPUT_BYTES) as stream:
            names = ipc.open_stream(stream).schema.names
    return names, lambda column: column_values(batches(), column, folder)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of files and parsers into InputError."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it first") from None
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read the table {path}: {error.strerror or error}") from None
    except (csv.Error, ValueError, KeyError, RecursionError, NotImplementedError) as error:  # also those of pyarrow
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read the table {path}: {first}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
