"""Clearhead's laboratory: models of its operators, their training, attacks, theorem checks and reproductions.

It uses Clearhead, which does not know it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead import rendering

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clearhead_lab.robustness.evaluation import attack as attack
    from clearhead_lab.robustness.record import Robustness as Robustness
    from clearhead_lab.robustness.suites import Attack as Attack
    from clearhead_lab.training.loop import train as train

# The module of each public name, imported at first use, as in `clearhead`.
_HOME = {
    "Attack": "clearhead_lab.robustness.suites",
    "Robustness": "clearhead_lab.robustness.record",
    "attack": "clearhead_lab.robustness.evaluation",
    "train": "clearhead_lab.training.loop",
}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605

rendering.import_when_needed(lambda: importlib.import_module("clearhead_lab.robustness.attack_text"))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead_lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
