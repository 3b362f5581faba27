"""Clearhead's laboratory: models of its operators, their training, attacks, theorem checks and reproductions.

It uses Clearhead, which does not know it.
"""

import importlib
from typing import Any

from clearhead import rendering
from clearhead.public_names import PublicNames

__version__ = "0.1.0"

_NAMES = PublicNames(__name__, "__version__")
__all__ = _NAMES.all  # noqa: PLE0605

rendering.import_when_needed(lambda: importlib.import_module("clearhead_lab.robustness.attack_text"))


def __getattr__(name: str) -> Any:
    return _NAMES.get(name)


def __dir__() -> list[str]:
    return __all__
