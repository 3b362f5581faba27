"""The private names of torch, transformers, timm and scipy that Clearhead relies on, one function or constant each.

Each has a test in tests/test_private_names.py, so that a new version that renames one is noticed.
"""

import sys
from collections.abc import Callable, Mapping
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
    "forward_mode_active",
    "function_modes",
    "functorch_active",
    "hf_collects_attentions",
    "is_batched_gradient",
    "jit_tracing",
    "lapack_capsules",
    "mark_constant",
    "pop_dispatch_mode",
    "storage_address",
    "tensor_version",
]

COMPILED_MODEL = "_orig_mod"
"""torch.compile's wrapper keeps the model under this attribute; error messages point to it."""

HF_IMPLEMENTATION = "_attn_implementation"
"""The attribute of a transformers config with the name of its attention implementation; it has no public getter."""

_HF_COLLECTOR = "_active_collector"
"""The variable of transformers.utils.output_capturing with what it collects from layers in a forward pass."""

DispatchMode = TorchDispatchMode
"""torch has no public module for dispatch modes; the residual stream needs one."""


def hf_collects_attentions() -> bool:
    """Return True in a forward pass in which transformers collects attention weights, and drops those that are None."""
    collector = getattr(sys.modules.get("transformers.utils.output_capturing"), _HF_COLLECTOR, None)
    collected = None if collector is None else collector.get()
    return collected is not None and any("attentions" in kind for kind in collected)


def current_dispatch_mode() -> Any:
    """Return the innermost dispatch mode of this thread, to know whether ours can be popped."""
    return _get_current_dispatch_mode()


def pop_dispatch_mode() -> Any:
    """Return a context in which the innermost dispatch mode is off."""
    return _pop_mode_temporarily()


def current_function_mode() -> Any:
    """Return the innermost torch function mode of this thread, or None."""
    return torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]


def function_modes() -> list[Any]:
    """Return the torch function modes of this thread, outermost first."""
    return list(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def storage_address(x: Tensor) -> int:
    """Return the identity of the tensor's storage, the same for all its views."""
    address: int = x.untyped_storage()._cdata
    return address


def tensor_version(x: Tensor) -> int:
    """Return the number of in-place writes to the tensor so far."""
    return x._version


def functorch_active() -> bool:
    """Return True inside vmap, grad or another transform of torch.func, where numbers cannot be read."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def is_batched_gradient(x: Tensor) -> bool:
    """Return True in a gradient computed with is_grads_batched, whose tensors have no memory of their own."""
    batched: bool = torch._C._functorch.is_legacy_batchedtensor(x)
    return batched


def forward_mode_active() -> bool:
    """Return True inside forward-mode differentiation, which custom operators do not support."""
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0


def jit_tracing() -> bool:
    """Return True inside torch.jit.trace; the public torch.jit.is_tracing cannot be compiled."""
    return torch._C._get_tracing_state() is not None


def mark_constant(function: Callable[[], Any]) -> None:
    """Let torch.compile take the function's result for a constant.

    The public torch.compiler.assume_constant_result imports the whole compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def lapack_capsules() -> Mapping[str, object]:
    """Return LAPACK's routines as C functions by name; scipy's public wrappers keep Python's interpreter lock."""
    from scipy.linalg import cython_lapack

    capsules: Mapping[str, object] = getattr(cython_lapack, "__pyx_capi__", {})
    return capsules
