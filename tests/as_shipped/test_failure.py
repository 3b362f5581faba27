"""How a command ends: only errors that Clearhead raises on purpose become one line."""

import signal
import subprocess
import sys

import pytest

from clearhead.cli.failure import RunInterruptedError, TerminatedError, exit_code_of
from clearhead.errors import ClearheadError, InputError
from clearhead.shapes import ShapeError
from clearhead.storage import WriteError


def _fail(error: BaseException) -> int:
    def command() -> None:
        raise error

    return exit_code_of(command)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ClearheadError("too many\n  tokens"), "too many tokens"),
        (InputError("no such layer"), "no such layer"),
        (ShapeError("expected q"), "expected q"),
        (WriteError("cannot write x: No space left on device"), "cannot write x: No space left on device"),
        (PermissionError(13, "Permission denied", "/etc/shadow"), "/etc/shadow: Permission denied"),
        (InputError("the model \x1b[2Jevil\x07 \u202ename"), "the model \\x1b[2Jevil\\x07 \\x202ename"),
    ],
)
def test_input_errors_are_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fail(error) == 2
    assert capsys.readouterr() == ("", f"clearhead: {line}\n")


@pytest.mark.parametrize(
    "error",
    [ValueError("a foreign message"), KeyError("none"), RuntimeError("x"), OSError("no file named"), AssertionError()],
)
def test_other_errors_keep_their_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fail(error) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback (most recent call last):\n")
    assert "raise error" in err
    assert err.splitlines()[-1].startswith(
        "clearhead: this is a defect in clearhead 0.1.0, not an error of yours; please"
    )


def test_interrupts_exit_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fail(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "clearhead: interrupted\n"
    assert _fail(RunInterruptedError("the report is in x", KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "clearhead: interrupted; the report is in x\n"
    assert _fail(RunInterruptedError("the report is in x", TerminatedError(signal.SIGTERM))) == 143
    assert capsys.readouterr().err == "clearhead: ended by SIGTERM; the report is in x\n"


def test_exit_codes_are_passed_on() -> None:
    assert exit_code_of(lambda: None) == 0
    assert exit_code_of(lambda: 1) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_run_the_clean_up(name: str) -> None:
    code = (
        "import os, signal, sys, time; from clearhead.cli.failure import exit_code_of\n"
        "def command():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), signal.{name}); time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned')\n"
        "sys.exit(exit_code_of(command))"
    )
    # A parent that ignores a signal, as nohup does, would pass that on.
    start = f"import signal, sys; signal.signal(signal.{name}, signal.SIG_DFL); exec({code!r})"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "cleaned\n"
    assert done.stderr == f"clearhead: ended by {name}\n"
    assert done.returncode == {"SIGTERM": 143, "SIGHUP": 129}[name]
