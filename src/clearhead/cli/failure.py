"""How a command ends: one line and exit code 2 for bad input, a traceback and exit code 1 for a defect."""

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable

import typer

from clearhead import __version__
from clearhead.errors import ClearheadError, InputError

__all__ = ["CommandError", "RunInterruptedError", "TerminatedError", "exit_code_of"]

# typer has its own copy of click or uses the installed one, depending on its version. Its exceptions lead to either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130


class CommandError(InputError):
    """Bad input to a command."""


class TerminatedError(BaseException):
    """A signal that ends the process, such as SIGTERM. No other code takes it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class RunInterruptedError(Exception):
    """An interrupt, by Ctrl-C or a signal, whose message says what the run has left behind."""

    def __init__(self, outcome: str, cause: BaseException) -> None:
        terminated = isinstance(cause, TerminatedError)
        super().__init__(f"{f'ended by {cause}' if terminated else 'interrupted'}; {outcome}")
        self.exit_code = cause.exit_code if isinstance(cause, TerminatedError) else _INTERRUPTED


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    A ClearheadError, a usage error and an operating-system error about a named file become one line on standard error
    and exit code 2. Any other exception is a defect: its traceback is printed, and the exit code is 1.
    """
    _exit_on_signals()
    try:
        code = command()
    except RunInterruptedError as error:
        _print_line(str(error))
        return error.exit_code
    except TerminatedError as error:
        _print_line(f"ended by {error}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
        path = getattr(getattr(error, "ctx", None), "command_path", "clearhead")
        _print_line(f"{message.rstrip('.')}; see {path} --help")
        return 2
    except ClearheadError as error:
        _print_line(str(error))
        return 2
    except OSError as error:
        if error.filename is None or error.strerror is None:
            return _report_defect()
        _print_line(f"{error.filename}: {error.strerror}")
        return 2
    except Exception:
        return _report_defect()
    if code == _INTERRUPTED:
        _print_line("interrupted")
    return code if isinstance(code, int) else 0


def _exit_on_signals() -> None:
    """Raise TerminatedError on SIGTERM and SIGHUP, so that temporary files are removed. Ignored ones stay ignored."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # only the main thread sets handlers
                signal.signal(number, _terminate)


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the removal of temporary files
    raise TerminatedError(number)


def _report_defect() -> int:
    if sys.stderr is not None:
        traceback.print_exc()
    _print_line(
        f"this is a defect in clearhead {__version__}, not an error of yours; please report it to the maintainers "
        "with the command and the lines above"
    )
    return 1


def _print_line(message: str) -> None:
    """Print one line to standard error. Control characters, which a file's name may hold, are escaped."""
    if sys.stderr is None:  # closed; print would use standard output instead
        return
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in " ".join(message.split()))
    print(f"clearhead: {line}", file=sys.stderr)
