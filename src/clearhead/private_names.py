"""The private names of torch, transformers and timm that Clearhead relies on, one function or constant each.

Each has a test in tests/test_private_names.py, so that a new version that renames one is noticed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

__all__ = [
    "COMPILED_MODEL",
    "HF_IMPLEMENTATION",
    "DispatchMode",
    "StorageWeakRef",
    "current_dispatch_mode",
    "current_function_mode",
    "function_modes",
    "pop_dispatch_mode",
    "storage_address",
    "tensor_version",
]

COMPILED_MODEL = "_orig_mod"
"""torch.compile's wrapper keeps the model under this attribute; error messages point to it."""

HF_IMPLEMENTATION = "_attn_implementation"
"""The attribute of a transformers config with the name of its attention implementation; it has no public getter."""

DispatchMode = TorchDispatchMode
"""torch has no public module for dispatch modes; the residual stream needs one."""


def current_dispatch_mode() -> Any:
    """Return the innermost dispatch mode of this thread, to know whether ours can be popped."""
    return _get_current_dispatch_mode()


def pop_dispatch_mode() -> Any:
    """Return a context in which the innermost dispatch mode is off."""
    return _pop_mode_temporarily()


def current_function_mode() -> Any:
    """Return the innermost torch function mode of this thread, None if there is none."""
    return torch.overrides._get_current_function_mode()


def function_modes() -> list[Any]:
    """Return the torch function modes of this thread, outermost first."""
    return list(torch.overrides._get_current_function_mode_stack())


def storage_address(x: Tensor) -> int:
    """Return the identity of the tensor's storage, the same for all its views."""
    address: int = x.untyped_storage()._cdata
    return address


def tensor_version(x: Tensor) -> int:
    """Return the number of in-place writes to the tensor so far."""
    return x._version
