"""How a command ends: with one line that names the cause and the remedy, exit code 2, and no foreign traceback."""

import sys
from collections.abc import Callable

import typer

from clearhead.errors import InputError

__all__ = ["CommandError", "RunInterruptedError", "exit_code_of"]

# typer carries its own copy of click or uses an installed one, by version; its public exceptions lead to either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130


class CommandError(InputError):
    """Bad input to a command."""


class RunInterruptedError(Exception):
    """An interrupt that leaves something to go on from. The message says so."""


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command; say expected errors in one line on standard error. A defect of Clearhead shows its traceback."""
    try:
        code = command()
    except RunInterruptedError as error:
        _say(str(error))
        return _INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
        _say(message.rstrip(".") + "; see clearhead --help")
        code = 2
    except (ValueError, OSError) as error:
        _say(str(error))
        code = 2
    if code == _INTERRUPTED:
        _say("interrupted; nothing was written")
    return code if isinstance(code, int) else 0


def _say(message: str) -> None:
    if sys.stderr is None:  # closed; print would take standard output instead
        return
    line = " ".join(message.split())
    print(f"clearhead: {line}", file=sys.stderr)
