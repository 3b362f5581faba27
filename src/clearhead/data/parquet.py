"""Parquet files, opened and checked by pyarrow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearhead.errors import InputError

__all__ = ["import_pyarrow", "open_parquet", "readable_parquet"]


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
