"""Clearhead: attention you can see through.

See what attention computes, test theories of it on your own models, and swap in better attention.
"""

import importlib
from typing import Any

from clearhead import rendering
from clearhead.public_names import PublicNames

__version__ = "0.1.0"

_LABORATORY = ("Robustness", "attack")
"""Names that moved to the laboratory."""

_NAMES = PublicNames(__name__, "__version__")
__all__ = _NAMES.all  # noqa: PLE0605

rendering.import_when_needed(lambda: importlib.import_module("clearhead.report"))


def __getattr__(name: str) -> Any:
    if name in _LABORATORY:
        raise AttributeError(f"clearhead.{name} is clearhead_lab.{name} now; pip install clearhead-lab")
    return _NAMES.get(name)


def __dir__() -> list[str]:
    return __all__
