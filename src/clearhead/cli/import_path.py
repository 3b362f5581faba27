"""Where Python may import from during a command: never from a model folder, and seldom from the current folder.

Libraries try optional imports (psutil, triton, kernels and many more). If the current folder were on `sys.path`, a
downloaded model folder could hold a file of such a name, and running a command there would run that file.

Nothing but `os` and `sys`, which every Python process has loaded, may be imported here before the path is clean.
"""

import os
import sys

__all__ = ["allow_current_folder", "remove_from_import_path"]

_OPTIONAL_IMPORTERS = ("transformers.modeling_utils", "transformers.tokenization_utils_base")
"""Modules that try optional imports when they are first imported."""


def remove_from_import_path(folder: str) -> None:
    """Take a folder off `sys.path`, however it came there, unless packages are installed in it."""
    resolved = os.path.realpath(folder)
    if not resolved.endswith(("site-packages", "dist-packages")):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != resolved]


def allow_current_folder(model: str, objects: list[str]) -> None:
    """Append the current folder to `sys.path`, so that `objects` (each `package.module:function`) can be imported.

    It comes after every installed package, and only when the libraries with optional imports are imported already.
    It is not appended if it belongs to the model folder. Raise InputError if an object is not found without it.
    """
    from contextlib import suppress
    from importlib import import_module
    from importlib.util import find_spec
    from pathlib import Path

    from clearhead.errors import InputError

    current, folder = Path.cwd().resolve(), Path(model).resolve()
    if folder.is_dir() and current.is_relative_to(folder):
        for path in objects:
            if find_spec(path.partition(":")[0].partition(".")[0]) is None:
                raise InputError(
                    f"cannot import {path}: the current folder belongs to the model, so no code is imported from it; "
                    "run the command in another folder, or name the folder of the code in PYTHONPATH"
                )
        return
    for module in _OPTIONAL_IMPORTERS:
        if find_spec(module.partition(".")[0]) is not None:
            with suppress(Exception):  # a broken installation is reported when a model needs it
                import_module(module)
    sys.path.append(str(current))
