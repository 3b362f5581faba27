"""Hugging Face models: layers that get their attention function from transformers' attention interface.

A layer's forward asks a global `AttentionInterface` for its function. An attached layer runs the same code with other
globals: there the interface is a proxy, whose functions run the handlers. The model's config, its masks and its choice
of implementation stay untouched, so padding and causality arrive exactly as the model built them.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.interfaces.attachment import Attachment, Detach, Handler, Interface, Layer, attach_to, attachment_of
from clearhead.interfaces.call import AttentionNotSeenError, Call, causal_mask, is_cross_attention, split_mask
from clearhead.interfaces.forward import named_arguments, own_forward, unwrap_forward, wrap_forward
from clearhead.private_names import HF_IMPLEMENTATION, hf_collects_attentions

NAME = "Hugging Face attention interface"


def find(model: nn.Module) -> list[Layer]:
    """Return the modules whose forward refers to an attention interface of transformers."""
    return [
        Layer(path=path, module=module)
        for path, module in model.named_modules()
        if hasattr(module, "config") and _refers_to_interface(inspect.unwrap(type(module).forward))
    ]


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the layer's attention calls. Raise InputError if it replaces what cannot be read."""
    implementation = getattr(layer.module.config, HF_IMPLEMENTATION)
    if handler.permanent and implementation not in (None, "eager", "sdpa"):
        raise InputError(
            f"the model's attention is {implementation!r}, whose masks cannot be read: "
            'call model.set_attn_implementation("sdpa") before the swap'
        )
    return attach_to(layer, handler, _HuggingFaceAttachment)


INTERFACE = Interface(name=NAME, find=find, attach=attach)


def _interface_class() -> Any:
    library = sys.modules.get("transformers.modeling_utils")
    return getattr(library, "AttentionInterface", None)


def _refers_to_interface(function: Any) -> bool:
    kind = _interface_class()
    if kind is None or not isinstance(function, FunctionType):
        return False
    return any(isinstance(function.__globals__.get(name), kind) for name in function.__code__.co_names)


class _HuggingFaceAttachment(Attachment):
    """Runs a layer's forward with proxies for its attention interfaces."""

    def install(self) -> None:
        self.cross = is_cross_attention(self.module, *self.name.split(".")[-2:])
        self._bind(own_forward(self.module))
        wrap_forward(self.module, self, innermost=True)

    def remove(self) -> None:
        unwrap_forward(self.module, self)

    def _bind(self, forward: Callable[..., Any]) -> None:
        self._forward = _with_proxies(forward, set())

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_forward"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The module may not be complete yet; its class is known.
        self._bind(type(self.module).forward.__get__(self.module))


class _Proxy:
    """An attention interface whose functions run the handlers of the module that calls them."""

    def __init__(self, interface: Any) -> None:
        self.interface = interface

    def get_interface(self, implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        """Return the interface's function with the handlers around it."""
        function = self.interface.get_interface(implementation, default)
        return partial(_attend, function, function is not default, implementation != "sdpa")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.interface, name)


def _with_proxies(function: Any, visited: set[int]) -> Any:
    """Return a copy of the function that uses proxies, in what it wraps too; itself if it refers to no interface."""
    if isinstance(function, MethodType):
        inner = _with_proxies(function.__func__, visited)
        return function if inner is function.__func__ else MethodType(inner, function.__self__)
    if not isinstance(function, FunctionType) or id(function) in visited:
        return function
    visited.add(id(function))
    kind = _interface_class()
    globals_used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    proxies = {
        name: _Proxy(value) for name, value in globals_used.items() if kind is not None and isinstance(value, kind)
    }
    cells = function.__closure__ or ()
    closure = tuple(_cell(cell, visited) for cell in cells)
    if not proxies and all(new is old for new, old in zip(closure, cells, strict=True)):
        return function
    # Without the file's name torch.compile reads these globals, and not the file's own.
    scope = {name: value for name, value in function.__globals__.items() if name != "__name__"} | proxies
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def _cell(cell: CellType, visited: set[int]) -> CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
    new = _with_proxies(content, visited)
    return cell if new is content else CellType(new)


def _attend(
    function: Callable[..., Any],
    rebuilds_causality: bool,
    gives_weights: bool,
    module: nn.Module,
    *args: Any,
    **kwargs: Any,
) -> Any:
    attachment = attachment_of(module)
    if not isinstance(attachment, _HuggingFaceAttachment):
        return function(module, *args, **kwargs)
    results: list[tuple[Any, ...]] = []

    def compute() -> tuple[Tensor, Tensor]:
        result = function(module, *args, **kwargs)
        results.append(result)
        return result[0].view(*call.q.transpose(1, 2).shape[:3], call.v.shape[-1]).transpose(1, 2), result[0]

    arguments = _arguments(function, module, args, kwargs)
    call = read_call(
        module, arguments, name=attachment.name, cross=attachment.cross, rebuilds_causality=rebuilds_causality
    )
    if gives_weights and wants_weights(arguments):
        call = replace(call, weights=[])
    out, own = attachment.run(call, compute)
    if not results:
        return out.transpose(1, 2).contiguous(), call.weights[0] if call.weights else None
    first, *rest = results[0]
    if out is own.output:
        return results[0]
    return out.to(first.dtype).transpose(1, 2).contiguous().view(first.shape), *rest


def wants_weights(arguments: dict[str, Any]) -> bool:
    """Return whether the caller of an attention function wants weights: what it is told, or what transformers does."""
    return bool(arguments.get("output_attentions")) or hf_collects_attentions()


def _arguments(
    function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    if len(args) > 4:
        return named_arguments(function, module, *args, **kwargs)
    return {**dict(zip(("query", "key", "value", "attention_mask"), args, strict=False)), **kwargs}


def read_call(
    module: nn.Module, arguments: dict[str, Any], *, name: str, cross: bool, rebuilds_causality: bool
) -> Call:
    """Return the call with these arguments of an attention function, by the names that transformers gives them.

    rebuilds_causality: whether no mask means that the module's own `is_causal` holds, as in transformers' sdpa
    """
    q, k, v = arguments["query"], arguments["key"], arguments["value"]
    added = arguments.get("attention_mask")
    if added is not None and (not isinstance(added, Tensor) or added.ndim != 4):
        raise AttentionNotSeenError(
            f"{name}: its mask cannot be read: call model.set_attn_implementation('sdpa'), or 'eager'"
        )
    if arguments.get("cache") is not None:
        raise AttentionNotSeenError(f"{name}: paged caches (continuous batching) are not served: generate without them")
    mask, bias = split_mask(added)
    is_causal = arguments.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if added is None and rebuilds_causality and q.shape[-2] > 1 and causal:
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
    position = arguments.get("position_bias")
    if position is not None:
        hidden, position = split_mask(position)
        mask = hidden if mask is None else mask if hidden is None else mask & hidden
        bias = position if bias is None else bias if position is None else bias + position
    groups = q.shape[1] // k.shape[1]
    scale, sinks = arguments.get("scaling"), arguments.get("s_aux")
    return Call(
        name=name,
        module=module,
        interface=NAME,
        q=q,
        k=k.repeat_interleave(groups, dim=1) if groups > 1 else k,
        v=v.repeat_interleave(groups, dim=1) if groups > 1 else v,
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=bias,
        softcap=arguments.get("softcap"),
        sinks=None if sinks is None else sinks.reshape(-1),
        dropout=float(arguments.get("dropout", 0.0)) if module.training else 0.0,
        groups=groups,
        causal=causal,
        cross=cross,
        window=arguments.get("sliding_window"),
    )
