"""Stand in for the forward of one module, as long as wanted: copied with the module, and taken away in any order.

The override lies on the instance and not in a hook, for torch's layers leave their fused paths where they find hooks.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn

__all__ = ["Wrapper", "remove_wrapper", "wrap_forward"]

_OVERRIDES = "_clearhead_overrides"
"""Where a module keeps those that it has, its present forward or beneath it."""


@runtime_checkable
class Wrapper(Protocol):
    """Something that stands in for a module's forward. It keeps no reference to the module."""

    def __call__(self, module: Any, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run in place of the module's forward, which `proceed` is."""
        ...


class _Override:
    """The forward of `module` inside its wrappers, the last outermost. It refers to its module, so a copy is whole."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = module.__dict__.get("forward")
        self.wrappers: list[Wrapper] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Level(self, tuple(self.wrappers))(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original)

    @property
    def original(self) -> Callable[..., Any]:
        """The module's own forward."""
        bound: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return bound if self.own is None else self.own


class _Level:
    """What a wrapper proceeds to: the wrappers below it, and the module's own forward beneath them."""

    def __init__(self, override: _Override, wrappers: tuple[Wrapper, ...]) -> None:
        self.override, self.wrappers = override, wrappers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.wrappers:
            return self.override.original(*args, **kwargs)
        *below, wrapper = self.wrappers
        return wrapper(self.override.module, _Level(self.override, tuple(below)), *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.override.original)


def wrap_forward(module: nn.Module, wrapper: Wrapper) -> None:
    """Run `wrapper` in place of the module's forward, until `remove_wrapper`."""
    override = module.__dict__.get("forward")
    if not isinstance(override, _Override):
        override = module.__dict__["forward"] = _Override(module)
        module.__dict__.setdefault(_OVERRIDES, []).append(override)
    override.wrappers.append(wrapper)


def remove_wrapper(module: nn.Module, wrapper: Wrapper) -> None:
    """Take the wrapper away; without any, the module is as it was.

    Where somebody has put a forward of their own over it since, it no longer acts beneath.
    """
    overrides: list[_Override] = module.__dict__.pop(_OVERRIDES, [])
    left = []
    for override in overrides:
        override.wrappers = [other for other in override.wrappers if other is not wrapper]
        if override.wrappers:
            left.append(override)
        elif module.__dict__.get("forward") is override:
            del module.__dict__["forward"]
            if override.own is not None:
                module.__dict__["forward"] = override.own
    if left:
        module.__dict__[_OVERRIDES] = left
