"""The public names of a package: its stub `__init__.pyi` lists them, and each is imported at first use.

torch takes seconds to import, and `clearhead --help` must not. Type checkers read the same list. No pathlib and nothing
that imports it: it looks for a module `nt`, and the command has not yet taken the current folder off the import path.
"""

import ast
import sys
from importlib import import_module
from typing import Any

__all__ = ["PublicNames"]


class PublicNames:
    """The names that the stub of a package imports. No file of the package may have one, which it would hide.

    A name that the stub imports from the package itself is a module of it.

    extra: further names, which the package defines itself
    """

    def __init__(self, package: str, *extra: str) -> None:
        with open(f"{sys.modules[package].__path__[0]}/__init__.pyi", encoding="utf-8") as stub:  # noqa: PTH123
            imports = [node for node in ast.parse(stub.read()).body if isinstance(node, ast.ImportFrom)]
        self._package = package
        self._homes = {alias.name: str(node.module) for node in imports for alias in node.names}
        self.all = sorted([*self._homes, *extra])

    def get(self, name: str) -> Any:
        """Return what has the name. Raise AttributeError if nothing public has it."""
        home = self._homes.get(name)
        if home is None:
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
        module = import_module(f"{home}.{name}" if home == self._package else home)
        # A package that can be called, clearhead.audit, has the name of its function and is there after the import.
        found = vars(sys.modules[self._package]).get(name)
        return getattr(module, name) if found is None else found
