"""The command in a forked process, which skips the imports.

A run has an exit code, a folder, an environment, streams and modules of its own, as if it had been started; it only
spends no seconds on importing torch and transformers. What a start does by itself, such as a warning of an import or
another order of hashes, is seen by the runs of `test_command_line.py` that do start.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import clearhead
import clearhead_lab

SECONDS = 300


def environment(columns: int) -> dict[str, str]:
    """The result of a run of the command, forked or not."""
    source = os.pathsep.join(str(Path(package.__file__).parents[1]) for package in (clearhead, clearhead_lab))
    return os.environ | {"COLUMNS": str(columns), "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class WarmCommand:
    """Runs of `clearhead`, each forked from a process that has only finished its imports."""

    def __init__(self, folder: Path) -> None:
        self._streams = {"out": folder / "out", "err": folder / "err"}
        self._server = subprocess.Popen(
            [sys.executable, __file__], cwd=folder, env=environment(80) | {"HF_HUB_OFFLINE": "1"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(
        self, *arguments: str, here: Path, columns: int = 100, out: Path | None = None, **settings: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command in a folder with these environment variables; None removes a variable."""
        wanted = {name: value for name, value in (environment(columns) | settings).items() if value is not None}
        streams = [str(out or self._streams["out"]), str(self._streams["err"])]
        request = {"arguments": arguments, "here": str(here), "settings": wanted, "streams": streams}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        printed = "" if out else self._streams["out"].read_text()
        return subprocess.CompletedProcess(arguments, code, printed, self._streams["err"].read_text())

    def close(self) -> None:
        """End the process that all runs are forked from."""
        self._server.communicate(timeout=SECONDS)


def _import_what_commands_do() -> None:
    from clearhead.interfaces.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    commands = ("clearhead.cli.audit", "clearhead_lab.cli.reproduce", "clearhead_lab.cli.verify")
    for module in ("sklearn.decomposition", *(f"{command}_command" for command in commands)):
        importlib.import_module(module)
    from transformers import AutoModel, AutoTokenizer, BertModel  # noqa: F401


def _become(arguments: list[str], here: str, settings: dict[str, str], streams: list[str]) -> None:
    for number, stream in enumerate((os.devnull, *streams)):
        os.dup2(os.open(stream, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    signal.alarm(SECONDS)
    os.chdir(here)
    os.environ.clear()
    os.environ.update(settings)
    sys.argv = ["clearhead", *arguments]
    from clearhead.__main__ import main

    main()  # leaves by SystemExit, as it does where it was started


if __name__ == "__main__":
    _import_what_commands_do()
    gc.collect()
    gc.freeze()  # or every run would go through all that was imported once more when it leaves
    answers = os.fdopen(os.dup(1), "w")
    while request := sys.stdin.readline():
        run = os.fork()
        if not run:
            _become(**json.loads(request))
        print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), file=answers, flush=True)
