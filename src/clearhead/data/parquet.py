"""Parquet files, opened and checked by pyarrow."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.storage import MAX_INPUT_BYTES, open_file

__all__ = ["column_values", "import_pyarrow", "open_parquet", "readable_parquet"]

MAX_ROWS = 10_000_000
"""Of a table of inputs."""


def import_pyarrow(module: str) -> Any:
    """Return a module of pyarrow: parquet, ipc, compute or types."""
    try:
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet files and datasets need pyarrow; pip install 'clearhead[tables]'") from None
    return getattr(pyarrow, module)


def open_parquet(path: Path, columns: Iterable[str] = (), *, texts: Sequence[str] = ()) -> Any:
    """Return pyarrow's ParquetFile.

    texts: columns whose texts are read as numbers and a list of the different ones

    Raise InputError if it is damaged, has no such column, or expands to more than `MAX_ROWS` rows or, in a row group,
    `MAX_INPUT_BYTES` bytes of a column.
    """
    with readable_parquet(path):
        with open_file(path):
            pass  # a regular file, which pyarrow opens itself
        file = import_pyarrow("parquet").ParquetFile(path, read_dictionary=list(texts))
    names, facts = file.schema_arrow.names, file.metadata
    for column in columns:
        if column not in names:
            raise InputError(f"{path} has no column {column!r}; it has {', '.join(map(repr, names)) or 'none'}")
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    rows = max(facts.num_rows, sum(group.num_rows for group in groups))
    if rows > MAX_ROWS or any(chunk.total_uncompressed_size > MAX_INPUT_BYTES for chunk in chunks):
        raise InputError(
            f"{path} expands to more than {MAX_ROWS:,} rows, or {MAX_INPUT_BYTES:,} bytes of a column in a row group: "
            "the limits of a table; divide it"
        )
    return file


def column_values(batches: Iterable[Any], column: str, source: Path) -> Iterator[str | None]:
    """Yield the texts of a column of Arrow's record batches.

    Raise InputError if it is not text, or before there are more than `MAX_ROWS` of them or `MAX_INPUT_BYTES` in all.
    """
    compute, types = import_pyarrow("compute"), import_pyarrow("types")
    rows = size = 0
    for batch in batches:
        batch.validate(full=True)
        values = batch.column(column)
        indexed = types.is_dictionary(values.type)
        kind = values.type.value_type if indexed else values.type
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)):
            raise InputError(f"column {column!r} of {source} holds {kind}, not text; choose another")
        rows += len(values)
        if rows <= MAX_ROWS and not types.is_null(kind):
            lengths = compute.binary_length(values.dictionary if indexed else values)
            size += compute.sum(lengths.take(values.indices) if indexed else lengths).cast("int64").as_py() or 0
        if rows > MAX_ROWS or size > MAX_INPUT_BYTES:
            raise InputError(
                f"{source} expands to more than {MAX_ROWS:,} rows or {MAX_INPUT_BYTES:,} bytes of text: the limits of "
                "a table; divide it"
            )
        yield from values.to_pylist()


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
