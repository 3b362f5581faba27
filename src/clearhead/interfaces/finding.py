"""All attention layers of a model, whatever their interface, and one function to attach to any of them."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from torch import nn

from clearhead.interfaces import described
from clearhead.interfaces.attachment import Detach, Handler, Interface, Layer
from clearhead.interfaces.descriptions import AttentionSpec
from clearhead.registry import Registry


def _expected(name: str, unit: Any) -> str:
    return "" if isinstance(unit, Interface) and unit.name == name else f"an Interface with the name {name}"


INTERFACES = Registry[Interface](
    "clearhead.interfaces",
    "interface",
    _expected,
    {
        "Hugging Face attention interface": "clearhead.interfaces.huggingface:INTERFACE",
        "torch.nn.MultiheadAttention": "clearhead.interfaces.torch_mha:INTERFACE",
        "Clearhead's own modules": "clearhead.interfaces.native:INTERFACE",
        "description": "clearhead.interfaces.described:INTERFACE",
        "timm class": "clearhead.interfaces.timm:INTERFACE",
        "torch fused attention": "clearhead.interfaces.sdpa:INTERFACE",
    },
    others_first=True,
)
"""The interfaces in the order in which they are asked: the first that finds a layer has it."""


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the layer's attention calls; the call that is returned takes it off."""
    return INTERFACES.get(layer.interface).attach(layer, handler)


def find(model: nn.Module, describe: Sequence[AttentionSpec] = ()) -> list[Layer]:
    """Return the attention layers of a model in the order in which its forward names them.

    A description comes first, then the interfaces of other packages; Clearhead's own find nothing inside their layers.
    A module of an interface that is not certain, such as one that is only known to name torch's fused attention, counts
    if no other layer is inside it or around it. Whether it computes attention is known when it runs.
    """
    layers: dict[str, Layer] = {}
    for layer in described.find(model, describe):
        if not any(_inside(layer.path, path) for path in layers):
            layers[layer.path] = replace(layer, interface=described.NAME)
    outer = list(layers)
    for name, interface in INTERFACES.usable().items():
        found = [replace(layer, interface=name) for layer in interface.find(model)]
        if interface.certain:
            found = [layer for layer in found if not any(layer.path == p or _inside(layer.path, p) for p in outer)]
        else:
            found = [layer for layer in found if not any(_related(layer.path, path) for path in layers)]
            found = [layer for layer in found if not any(_inside(other.path, layer.path) for other in found)]
        for layer in found:
            layers.setdefault(layer.path, layer)
        if not INTERFACES.is_own(name):
            outer = list(layers)
    return [layers[path] for path, _ in forward_order(model) if path in layers]


def _inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(outer + "."))


def _related(path: str, other: str) -> bool:
    return path == other or _inside(path, other) or _inside(other, path)


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
