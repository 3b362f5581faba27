"""Standard output: as wide as the terminal, written in one piece, and strict about what cannot be written."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from clearhead.cli.failure import CommandError

__all__ = ["printing"]


@contextmanager
def printing() -> Iterator[Console]:
    """A console whose text reaches standard output when the block is left.

    rich and typer each end the process by rules of their own when a pipe is closed; here it is an error like others.
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
    if sys.stdout is None or sys.stdout.closed:
        raise CommandError("standard output is closed; nothing could be printed")
    try:
        sys.stdout.write(buffer.getvalue())
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        raise CommandError("the pipe was closed before everything was printed") from None
    except OSError as error:
        _drop_the_rest()
        raise CommandError(f"cannot print to standard output: {error.strerror or error}") from None


def _drop_the_rest() -> None:
    """What is still buffered goes nowhere, or the interpreter stumbles over it once more when it leaves."""
    with suppress(OSError):  # a stream without a file of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
