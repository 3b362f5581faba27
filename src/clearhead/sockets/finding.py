"""Find the layers of a model that an operator can be put into, and the door of each, without running the model."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import nn

from clearhead.sockets.described import AttentionSpec
from clearhead.sockets.doors import Door
from clearhead.sockets.doors.described import DescribedDoor
from clearhead.sockets.doors.huggingface import HuggingFaceDoor
from clearhead.sockets.doors.native import NATIVE, NativeDoor
from clearhead.sockets.doors.sdpa import SdpaDoor
from clearhead.sockets.doors.torch_mha import TorchDoor
from clearhead.sockets.expected import looks_like_attention
from clearhead.sockets.huggingface import INTERFACE_FREE

__all__ = ["Layer", "find_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One attention layer of a model: its number, in the order of `named_modules`, its path, and its door."""

    index: int | None
    path: str
    module: nn.Module
    door: Door


def find_layers(model: nn.Module, describe: Sequence[AttentionSpec] = ()) -> list[Layer]:
    """Every layer that asks for attention as far as its code or its class's name tells, the innermost of each nest.

    Whether one that is known by name alone asks torch's function at all is seen when it runs.
    """
    found: dict[str, tuple[nn.Module, Door]] = {}
    for path, module in model.named_modules():
        if any(isinstance(door, DescribedDoor) and _inside(path, outer) for outer, (_, door) in found.items()):
            continue
        door = _door(module, describe)
        if door is not None:
            found[path] = (module, door)
    innermost = [path for path in found if not any(_inside(other, path) for other in found)]
    return [
        Layer(index=index, path=path or "(model)", module=found[path][0], door=found[path][1])
        for index, path in enumerate(innermost)
    ]


def _inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(outer + "."))


def _door(module: nn.Module, describe: Sequence[AttentionSpec]) -> Door | None:
    for spec in describe:
        if spec.describes(module):
            return DescribedDoor(spec)
    if hasattr(module, "config") and _asks_interface(type(module)):
        return HuggingFaceDoor()
    if isinstance(module, nn.MultiheadAttention) and type(module).forward is nn.MultiheadAttention.forward:
        return TorchDoor()
    if isinstance(module, NATIVE):
        return NativeDoor()
    for spec in INTERFACE_FREE:
        if spec.describes(module):
            return DescribedDoor(spec)
    return SdpaDoor() if _mentions_sdpa(type(module)) or looks_like_attention(module) else None


def _asks_interface(kind: Any) -> bool:
    """Whether the class's forward refers to an attention interface of transformers."""
    library = sys.modules.get("transformers.modeling_utils")
    forward: Any = inspect.unwrap(kind.forward)
    if library is None or not isinstance(forward, FunctionType):
        return False
    named = (forward.__globals__.get(name) for name in forward.__code__.co_names)
    return any(isinstance(value, library.AttentionInterface) for value in named)


def _mentions_sdpa(kind: Any) -> bool:
    """Whether one of the class's methods names torch's fused attention."""
    return any("scaled_dot_product_attention" in method.__code__.co_names for method in _methods(kind))


def _methods(kind: Any) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        if base is nn.Module:
            return
        for value in vars(base).values():
            method = inspect.unwrap(value) if callable(value) else value
            if isinstance(method, FunctionType):
                yield method
