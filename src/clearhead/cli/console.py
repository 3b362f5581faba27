"""Standard output and the progress bar."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from clearhead.cli.failure import CommandError
from clearhead.cli.torchrun import is_first

__all__ = ["ProgressBar", "printing", "progress_bar"]


class ProgressBar:
    """A bar on standard error. Where that is no terminal, only notices are printed."""

    def __init__(self, bar: Progress, description: str) -> None:
        self._bar, self._task, self._phase = bar, bar.add_task(description, total=None), description

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show what is being done, how many steps are finished, and of how many. A new text is a new phase.

        Each phase has its own clock, so that the time left does not depend on the phases before.
        """
        if what != self._phase:
            self._bar.remove_task(self._task)
            self._task, self._phase = self._bar.add_task(what, total=total), what
        self._bar.update(self._task, completed=done, total=total)

    def describe(self, text: str) -> None:
        """Change the text without a new phase."""
        self._bar.update(self._task, description=text)

    def notice(self, line: str) -> None:
        """Print a line above the bar."""
        from clearhead.report.wording import clean

        self._bar.console.print(clean(line), soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextmanager
def printing() -> Iterator[Console]:
    """Yield a console whose text is written to standard output when the block ends.

    rich and typer end the process in their own way when a pipe is closed; here it is a CommandError.
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
        _discard_buffered_output()
        raise CommandError("the pipe was closed before everything was printed") from None
    except OSError as error:
        _discard_buffered_output()
        raise CommandError(f"cannot print to standard output: {error.strerror or error}") from None


@contextmanager
def progress_bar(description: str) -> Iterator[ProgressBar]:
    """Show a progress bar while the block runs, on standard error, so that standard output holds only the result."""
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or not is_first(),
    ) as bar:
        yield ProgressBar(bar, description)


def _discard_buffered_output() -> None:
    """Send what is still buffered nowhere; the interpreter would fail on it once more when it ends."""
    with suppress(OSError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
