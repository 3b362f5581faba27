"""How a command fails: one line that names the cause and the remedy, exit code 2, no foreign traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["CommandError", "closed_pipe", "one_line_failures"]


class CommandError(ValueError):
    """Bad input to a command."""


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Print expected errors as one line on standard error. A defect of Clearhead itself still shows its traceback."""
    try:
        yield
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        _say("interrupted; nothing was written")
        sys.exit(130)
    except click.ClickException as error:
        hint = f"; see {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        _say(error.format_message().rstrip(".") + hint)
        sys.exit(2)
    except (ValueError, OSError) as error:
        _say(str(error))
        sys.exit(2)


def closed_pipe() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not stumble over the pipe again on leaving."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(f"clearhead: {line}", file=sys.stderr)
