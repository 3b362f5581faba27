"""What attacks share: a command in this process and its end, a process for each attempt, and the count of all."""

import argparse
import contextlib
import io
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from clearhead.cli.failure import exit_code_of

__all__ = ["HangError", "in_child", "limited", "run", "try_all", "wrong_end"]

SECONDS = 60


class HangError(BaseException):
    """More than the seconds of an attempt; no other code catches it."""


@contextlib.contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Raise HangError in the block after some seconds."""

    def give_up(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(command: Callable[[], object]) -> tuple[int, str, str]:
    """Run a command in this process. Return its exit code and what it printed, to standard output and error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code_of(command)
    return code, out.getvalue(), err.getvalue()


def wrong_end(code: int, err: str) -> list[str]:
    """Return what is wrong with how a command ended: a traceback, several lines or control characters."""
    lines = err.splitlines()
    if "Traceback" in err or code not in (0, 1, 2):
        return [f"traceback: {lines[-2:]}"]
    if code == 2 and sum(line.startswith("clearhead: ") for line in lines) != 1:
        return [f"not one line: {err}"]
    return ["control characters"] if any(not line.isprintable() for line in lines) else []


def in_child(work: Callable[[], str]) -> str:
    """Return what a function returns in a process of its own, which leaves no module, path or handler here."""
    answer, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(into, result[:1000].encode(errors="replace"))
        os._exit(0)
    os.close(into)
    with os.fdopen(answer, "rb") as stream:
        result = stream.read().decode(errors="replace")
    os.waitpid(child, 0)
    return result or "the process died"


def try_all(
    description: str | None, prepare: Callable[[Path], Callable[[int], str]], *, count: int, noun: str, good: set[str]
) -> int:
    """Read the options of the command line, try as many seeds and print counts. Return 1 if there was a fault.

    prepare: returns the function that tries a seed, given a folder; outcomes that are not `good` are faults
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--first", type=int, default=0, help="seed of the first, to repeat one")
    options = parser.parse_args()
    results = Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        attempt = prepare(Path(temporary))
        for seed in range(options.first, options.first + options.count):
            result = attempt(seed)
            if result not in good:
                print(f"fault: --first {seed} --count 1: {result[:300]}", flush=True)
                result = "faults"
            results[result] += 1
    counts = ", ".join(f"{number} {name}" for name, number in sorted(results.items()))
    print(f"{options.count} {noun}, seeds from {options.first}: {counts}")
    return int(results["faults"] > 0)
