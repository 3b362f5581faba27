"""Clearhead: attention you can see through.

See what attention computes, test theories of it on your own models, and swap in better attention.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead import rendering

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clearhead import modules as modules
    from clearhead import operators as operators
    from clearhead._capture import capture as capture
    from clearhead._swap import Swap as Swap
    from clearhead._swap import SwapWarning as SwapWarning
    from clearhead._swap import find_swaps as find_swaps
    from clearhead._swap import load_swaps as load_swaps
    from clearhead._swap import register_huggingface as register_huggingface
    from clearhead._swap import save_swaps as save_swaps
    from clearhead._swap import swap as swap
    from clearhead.audit.comparison import Comparison as Comparison
    from clearhead.audit.comparison import compare as compare
    from clearhead.audit.fidelity import check_fidelity as check_fidelity
    from clearhead.audit.findings import Finding as Finding
    from clearhead.audit.findings import Verdict as Verdict
    from clearhead.audit.record import AuditRecord as AuditRecord
    from clearhead.audit.run import audit as audit
    from clearhead.errors import ClearheadError as ClearheadError
    from clearhead.errors import InputError as InputError
    from clearhead.heads import Heads as Heads
    from clearhead.interfaces import AttentionNotSeenError as AttentionNotSeenError
    from clearhead.interfaces import AttentionSpec as AttentionSpec
    from clearhead.interfaces.torchvision_shim import ensure_torchvision as ensure_torchvision
    from clearhead.loading.model import load_model as load_model
    from clearhead.report.folder import write_report as write_report
    from clearhead.shapes import ShapeError as ShapeError
    from clearhead.testing import check_attention as check_attention

# The module of each public name. It is imported at first use: torch takes seconds, and `clearhead --help` must not.
# So no module may have the name of a public name, which importing the module would hide; `audit` is a package that can
# be called.
_HOME = {
    "AttentionNotSeenError": "clearhead.interfaces",
    "AttentionSpec": "clearhead.interfaces",
    "AuditRecord": "clearhead.audit.record",
    "ClearheadError": "clearhead.errors",
    "Comparison": "clearhead.audit.comparison",
    "Finding": "clearhead.audit.findings",
    "Heads": "clearhead.heads",
    "InputError": "clearhead.errors",
    "ShapeError": "clearhead.shapes",
    "Swap": "clearhead._swap",
    "SwapWarning": "clearhead._swap",
    "Verdict": "clearhead.audit.findings",
    "audit": "",
    "capture": "clearhead._capture",
    "check_attention": "clearhead.testing",
    "check_fidelity": "clearhead.audit.fidelity",
    "compare": "clearhead.audit.comparison",
    "ensure_torchvision": "clearhead.interfaces.torchvision_shim",
    "find_swaps": "clearhead._swap",
    "load_model": "clearhead.loading.model",
    "load_swaps": "clearhead._swap",
    "modules": "",
    "operators": "",
    "register_huggingface": "clearhead._swap",
    "save_swaps": "clearhead._swap",
    "swap": "clearhead._swap",
    "write_report": "clearhead.report.folder",
}

_LABORATORY = ("Robustness", "attack")
"""Names that moved to the laboratory."""

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


rendering.import_when_needed(lambda: importlib.import_module("clearhead.report"))


def __getattr__(name: str) -> Any:
    if name in _LABORATORY:
        raise AttributeError(f"clearhead.{name} is clearhead_lab.{name} now; pip install clearhead-lab")
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    home = _HOME[name]
    return getattr(importlib.import_module(home), name) if home else importlib.import_module(f"clearhead.{name}")


def __dir__() -> list[str]:
    return __all__
