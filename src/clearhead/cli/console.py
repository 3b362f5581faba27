"""Standard output for tables: as wide as the terminal, and strict about closed pipes."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["printing"]


@contextmanager
def printing() -> Iterator[Console]:
    """A console whose text reaches standard output in one piece, when the block is left.

    rich ends the process by its own rules when a pipe is closed; this way the error arrives as an ordinary exception.
    """
    terminal = Console()
    buffer = io.StringIO()
    yield Console(
        file=buffer,
        width=terminal.width,
        force_terminal=terminal.is_terminal,
        color_system=terminal.color_system,  # type: ignore[arg-type]
        legacy_windows=False,
    )
    sys.stdout.write(buffer.getvalue())
    sys.stdout.flush()
