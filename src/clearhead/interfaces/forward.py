"""The one wrapper around a module's forward: on the instance, copied with it, and removed in any order.

It is not a hook: torch's encoder layers leave their fused path, and with it the exact bits of their output, where a
module has hooks.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

_REPLACED = "_clearhead_forwards"
"""The attribute of a module with its wrapped forwards: the present one, and those below a forward set by others."""


@runtime_checkable
class ForwardWrapper(Protocol):
    """A function around a module's forward."""

    @property
    def permanent(self) -> bool:
        """True if copies of the module, and files it is saved to, keep the wrapper."""
        ...

    def __call__(self, module: Any, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run instead of the module's forward, which is `proceed`."""
        ...


class _WrappedForward:
    """The forward of `module` inside its wrappers, the last one outermost."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = module.__dict__.get("forward")
        self.wrappers: list[ForwardWrapper] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.wrappers and not torch.compiler.is_compiling():
            self.remove()  # in a copy that was made while temporary wrappers were here
        return _Level(self, tuple(self.wrappers))(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and files hold: they refer to the copied module and keep permanent wrappers only."""
        wrappers = [wrapper for wrapper in self.wrappers if wrapper.permanent]
        return {"module": self.module, "own": self.own, "wrappers": wrappers}

    def remove(self) -> None:
        """Give the module its own forward back."""
        if self.module.__dict__.get("forward") is self:
            self.module.__dict__.pop("forward", None)
            if self.own is not None:
                self.module.__dict__["forward"] = self.own

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original)

    @property
    def original(self) -> Callable[..., Any]:
        """The module's own forward."""
        bound: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return bound if self.own is None else self.own


class _Level:
    """The continuation of a wrapper: the wrappers below it, then the module's own forward."""

    def __init__(self, forward: _WrappedForward, wrappers: tuple[ForwardWrapper, ...]) -> None:
        self.forward, self.wrappers = forward, wrappers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.wrappers:
            return self.forward.original(*args, **kwargs)
        *below, wrapper = self.wrappers
        return wrapper(self.forward.module, _Level(self.forward, tuple(below)), *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward.original)


def wrap_forward(module: nn.Module, wrapper: ForwardWrapper, *, innermost: bool = False) -> None:
    """Run `wrapper` around the module's forward until `unwrap_forward`."""
    forward = module.__dict__.get("forward")
    if not isinstance(forward, _WrappedForward):
        forward = module.__dict__["forward"] = _WrappedForward(module)
        module.__dict__.setdefault(_REPLACED, []).append(forward)
    forward.wrappers.insert(0 if innermost else len(forward.wrappers), wrapper)


def unwrap_forward(module: nn.Module, wrapper: ForwardWrapper) -> None:
    """Remove the wrapper, also from below a forward that others have set since.

    After the last wrapper the module has its own forward and no attribute of ours.
    """
    remaining = []
    for forward in module.__dict__.pop(_REPLACED, []):
        forward.wrappers = [other for other in forward.wrappers if other is not wrapper]
        if forward.wrappers:
            remaining.append(forward)
        else:
            forward.remove()
    if remaining:
        module.__dict__[_REPLACED] = remaining


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """Return the module's forward without our wrappers."""
    forward = module.forward
    return forward.original if isinstance(forward, _WrappedForward) else forward


def named_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, those collected in **kwargs included and defaults left out."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments
