"""The order in which a model's forward runs its modules, as far as its code tells."""

import inspect
from collections.abc import Iterator
from types import FunctionType

from torch import nn

__all__ = ["forward_order"]


def forward_order(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield paths and modules depth first, the children of each in the order in which its forward first names them.

    CLIP, for example, holds its text model before its vision model and runs it after. Children that forward does not
    name come in the order in which they are held. A shared module comes once, as in `named_modules`.
    """
    yield from _ordered(model, "", set())


def _ordered(module: nn.Module, path: str, visited: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in visited:
        return
    visited.add(id(module))
    yield path, module
    names = _names(type(module))
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    positions = {name: names.index(name) if name in names else -1 for name, _ in children}
    ordered = iter(sorted((child for child in children if positions[child[0]] >= 0), key=lambda c: positions[c[0]]))
    children = [child if positions[child[0]] < 0 else next(ordered) for child in children]
    for name, child in children:
        yield from _ordered(child, f"{path}.{name}" if path else name, visited)


def _names(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the names that a class's forward uses, in the order of first use, those of the methods it calls inside."""
    return tuple(_names_in(inspect.unwrap(kind.forward), kind, set()))


def _names_in(function: object, kind: type, visited: set[str]) -> Iterator[str]:
    if not isinstance(function, FunctionType):
        return
    for name in function.__code__.co_names:
        yield name
        method = inspect.unwrap(value) if callable(value := getattr(kind, name, None)) else None
        if isinstance(method, FunctionType) and name not in visited:
            visited.add(name)
            yield from _names_in(method, kind, visited)
