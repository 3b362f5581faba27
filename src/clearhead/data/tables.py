"""One column of text from a table: CSV, JSON lines, Parquet (opened and checked by pyarrow), or a Hugging Face dataset
folder on disk."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearhead.data.readers import Reader
from clearhead.errors import InputError
from clearhead.storage import parse_json, read_bytes

__all__ = ["READER", "open_parquet", "read_column", "readable_parquet"]


def import_pyarrow(module: str) -> Any:
    """Return a module of pyarrow: parquet or ipc."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet files and datasets need pyarrow; pip install 'clearhead[tables]'") from None
    return getattr(pyarrow, module)


def open_parquet(path: Path, columns: Iterable[str] = ()) -> Any:
    """Return pyarrow's ParquetFile. Raise InputError if it is damaged or has no such column."""
    with readable_parquet(path):
        file = import_pyarrow("parquet").ParquetFile(path)
    names = file.schema_arrow.names
    for column in columns:
        if column not in names:
            raise InputError(f"{path} has no column {column!r}; it has {', '.join(map(repr, names)) or 'none'}")
    return file


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into InputError."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; copy the whole set again") from None
    except (OSError, ValueError, KeyError, NotImplementedError) as error:  # pyarrow's errors derive from these
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{path} is damaged or half copied ({reason}); copy it again") from None


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
    with _readable(path):
        values = list(read(column))
    for row, value in enumerate(values, start=1):
        if not isinstance(value, str | None):
            raise InputError(
                f"column {column!r} of {path} has a {type(value).__name__} in row {row}, not text; "
                f"choose another: {_listed(columns)}"
            )
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
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from (row[column] for row in csv.DictReader(file, delimiter=delimiter))

    with path.open(encoding="utf-8-sig", newline="") as file:
        names = csv.DictReader(file, delimiter=delimiter).fieldnames
    return list(names or ()), read


def _json_lines(path: Path) -> tuple[list[str], Read]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} must have one JSON object per line; give other text as a .txt file")
    return list(dict.fromkeys(name for row in rows for name in row)), lambda column: (row.get(column) for row in rows)


def _parquet(path: Path) -> tuple[list[str], Read]:
    parquet = import_pyarrow("parquet")
    names: list[str] = parquet.read_schema(path).names
    return names, lambda column: parquet.read_table(path, columns=[column]).column(column).to_pylist()


def _dataset(folder: Path) -> tuple[list[str], Read]:
    """Read what `Dataset.save_to_disk` of Hugging Face wrote: Arrow streams that state.json lists."""
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.name for path in folder.iterdir() if (path / "state.json").is_file())
        raise InputError(f"{folder} has several splits; give the folder of one: {_listed(splits)}")
    try:
        state = parse_json(read_bytes(folder / "state.json"), folder / "state.json")
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a dataset folder, as Dataset.save_to_disk writes it; give a text file or a table"
        ) from None
    try:
        files = [folder / Path(str(entry["filename"])).name for entry in state["_data_files"]]
    except (KeyError, TypeError):
        raise InputError(f"{folder / 'state.json'} does not list the files of a dataset; save it again") from None
    if special := next((file for file in files if file.exists() and not file.is_file()), None):
        raise InputError(f"cannot read {special}: it is not a regular file")
    ipc = import_pyarrow("ipc")

    def read(column: str) -> Iterator[Any]:
        for file in files:
            with file.open("rb") as stream:
                for batch in ipc.open_stream(stream):
                    yield from batch.column(column).to_pylist()

    names: list[str] = []
    if files:
        with files[0].open("rb") as stream:
            names = ipc.open_stream(stream).schema.names
    return names, read


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
    except (csv.Error, ValueError, KeyError, RecursionError) as error:  # pyarrow's errors are ValueErrors and KeyErrors
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read the table {path}: {first}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
