"""Where Python may import from during a command: never from data, and seldom from the current folder.

Libraries try optional imports (psutil, triton, kernels and many more). If the current folder were on `sys.path`, a
downloaded model folder could hold a file of such a name, and running a command there would run that file.

Nothing but `os` and `sys`, which every Python process has loaded, may be imported here before the path is clean.
"""

import os
import sys

__all__ = ["allow_current_folder", "never_import_from", "remove_from_import_path"]

_OPTIONAL_IMPORTERS = ("transformers.modeling_utils", "transformers.tokenization_utils_base")
"""Modules that try optional imports when they are first imported."""

_data_folders: set[str] = set()
"""Model folders and reports of this process."""


def remove_from_import_path(folder: str) -> None:
    """Take a folder off `sys.path`, however it came there, unless packages are installed in it."""
    resolved = os.path.realpath(folder)
    if not resolved.endswith(("site-packages", "dist-packages")):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != resolved]


def never_import_from(path: str) -> None:
    """Take the folder of a model or a report, or of a file in it, off `sys.path` until the process ends."""
    from pathlib import Path

    folder = Path(path).parent if Path(path).is_file() else Path(path)
    if path and folder.is_dir():
        remove_from_import_path(str(folder))
        _data_folders.add(str(folder.resolve()))


def allow_current_folder(objects: list[str]) -> None:
    """Append the current folder to `sys.path`, so that `objects` (each `package.module:function`) can be imported.

    It comes after every installed package, and only when the libraries with optional imports are imported already.
    It is not appended if it belongs to a model folder or a report. Raise InputError for an object that is found in
    one of these, or only in the current folder while that is in one of these.
    """
    from contextlib import suppress
    from importlib import import_module
    from importlib.util import find_spec
    from pathlib import Path

    from clearhead.errors import InputError

    current = str(Path.cwd().resolve())
    is_data = _is_data(current)
    if not is_data:
        for module in _OPTIONAL_IMPORTERS:
            if find_spec(module.partition(".")[0]) is not None:
                with suppress(Exception):  # a broken installation is reported when a model needs it
                    import_module(module)
        sys.path.append(current)
    for path in objects:
        files = _files_of(path.partition(":")[0])
        if is_data and not files and path.partition(":")[0].partition(".")[0] not in sys.modules:
            raise InputError(
                f"cannot import {path}: the current folder belongs to the model or the report, so no code is imported "
                "from it; run the command in another folder, or name the folder of the code in PYTHONPATH"
            )
        if any(map(_is_data, files)):
            raise InputError(
                f"cannot import {path}: it is in the folder of the model or the report, from which no code is "
                "imported; move it to another folder"
            )


def _is_data(path: str) -> bool:
    from pathlib import Path

    return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in _data_folders)


def _files_of(module: str) -> list[str]:
    """Return the files that importing a module would run, without importing it."""
    from importlib.machinery import PathFinder

    files, path = [], None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path) if part else None
        if spec is None:
            break
        files += [spec.origin] if spec.origin else []
        path = list(spec.submodule_search_locations or ())
    return files
