"""What a report names is used only if the user names it too: whoever writes a report also writes its checksum.

A manifest holds the options of its audit. Numbers, choices and names of Clearhead's own are used again. Functions run
code, so they are typed again. Paths open files, so they are typed again, or confirmed all at once.
"""

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead.cli.failure import CommandError
from clearhead.cli.request import AuditRequest
from clearhead.loading.model import DEMOS
from clearhead.operators.named import OPERATORS

__all__ = ["NAMED", "Typed", "confirm", "require_other_folder"]

NAMED = ("model", "text", "images", "audio", "batches", "loss", "describe", "swap")
"""Options that name something outside the report. All others are numbers, choices, or names of Clearhead's own."""
FUNCTIONS = ("model", "batches", "loss")
PATHS = ("model", "text", "images", "audio", "describe", "swap")

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LONGEST = 4096
_SYSTEM_FOLDERS = tuple(map(Path, ("/dev", "/proc", "/sys")))
"""Their regular files can be endless, and reading can wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What the user typed.

    command: the words of the command without the options in `values`
    values: by the name of the option; None for one that was not typed
    trust_paths: True to use the paths in the report
    options: how the command calls an option, if not by its name; "" for an argument
    """

    command: Sequence[str]
    values: Mapping[str, Any]
    trust_paths: bool
    options: Mapping[str, str] = field(default_factory=dict)

    def option(self, name: str) -> str:
        """Return how the command calls an option."""
        return self.options.get(name, f"--{name}")


def confirm(stored: AuditRequest, report: Path, typed: Typed) -> AuditRequest:
    """Return the request of a manifest with all functions and paths from the user.

    Raise CommandError with the command to type if something that the manifest names was neither typed nor confirmed,
    or if a path is no regular file and no folder.
    """
    chosen = {name: typed.values.get(name) for name in NAMED}
    needed = [name for name in NAMED if chosen[name] is None and not _is_harmless(name, stored[name])]
    trusted = [name for name in needed if typed.trust_paths and _is_path(name, str(stored[name]))]
    if missing := [name for name in needed if name not in trusted]:
        raise CommandError(_remedy(stored, report, typed, missing))
    request = stored.with_values({name: value for name, value in chosen.items() if value is not None})
    for name in PATHS:
        value = request[name]
        if name in trusted or isinstance(value, Path):
            _require_regular(typed.option(name), Path(value))
    return request


def require_other_folder(out: Path, report: Path) -> None:
    """Raise CommandError if the folder for results is the report or came with it.

    Such a folder may be a link to somewhere else, or hold an audit to continue that nobody began.
    """
    inside = report.resolve()
    if out.resolve() == inside:
        raise CommandError(f"--out {out} is the report to compare with; it would be overwritten: choose another folder")
    absolute = Path(os.path.normpath(out.absolute()))
    for path in (absolute, *absolute.parents):
        if path.parent.resolve().is_relative_to(inside) and os.path.lexists(path):
            raise CommandError(f"--out {out} is a part of the report {report}: choose another folder")


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether an option of a manifest names nothing but what comes with Clearhead."""
    if value is None or value == ():
        return True
    if name == "swap":  # a folder of this name would be read instead of the operator
        return value.partition(":")[0] in OPERATORS and not Path(value).exists()
    return name == "model" and value in DEMOS


def _is_path(name: str, value: str) -> bool:
    """Return whether a manifest's value is a path as audits write them. The path itself is not touched."""
    return name in PATHS and Path(value).is_absolute() and value.isprintable() and len(value) <= _LONGEST


def _remedy(stored: AuditRequest, report: Path, typed: Typed, missing: Sequence[str]) -> str:
    """Return one line with the command that names everything."""
    words, functions = list(typed.command), False
    for name in NAMED:
        value = typed.values.get(name)
        if name in missing:
            value = str(stored[name])
            is_function = name in FUNCTIONS and _FUNCTION.fullmatch(value) is not None
            functions = functions or is_function or name not in PATHS
            if not is_function and not _is_path(name, value):
                value = "PATH" if name in PATHS else "package.module:function"
        option = typed.option(name)
        if value is not None and (option or name in missing):  # a typed argument is in the command
            words += [option, str(value)] if option else [str(value)]
    words += ["--trust-paths"] if typed.trust_paths else []
    why = "functions, which run code" if functions else "files or folders"
    others = "" if functions or typed.trust_paths else ", or confirm its paths with --trust-paths"
    return f"{report} names {why}; a report is data: if you trust them, type {shlex.join(words)}{others}"


def _require_regular(option: str, path: Path) -> None:
    """Raise CommandError for pipes, devices, files of the system, and what is not there."""
    try:
        mode, resolved = path.stat().st_mode, path.resolve()
    except (OSError, ValueError) as error:
        raise CommandError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None
    special = resolved == Path(resolved.anchor) or any(resolved.is_relative_to(folder) for folder in _SYSTEM_FOLDERS)
    if special or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise CommandError(f"{option} {path} is a pipe, a device or a part of the system; name a file or a folder")
