"""The audit of a model: fidelity, measurement, judging and record.

`clearhead.audit(model, batches)` runs an audit. Importing a file of this package makes `clearhead.audit` the package,
so the package can be called.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called as its main function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("clearhead.audit.run").audit(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(importlib.import_module("clearhead.audit.run").audit)


sys.modules[__name__].__class__ = _CallablePackage
