"""Standard output: as wide as the terminal, written in one piece, and strict about closed pipes."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
    try:
        sys.stdout.write(buffer.getvalue())
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered goes nowhere, or the interpreter stumbles over the pipe once more when it leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandError("the pipe was closed before everything was printed") from None
