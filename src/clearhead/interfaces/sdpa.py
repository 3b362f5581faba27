"""Layers that call torch.nn.functional.scaled_dot_product_attention, under any imported name.

The calls that a module makes while its forward runs are intercepted by a function mode, which torch keeps to the
thread. Attached to a whole model, the module that makes a call is read off the stack: which modules call the function
is only known when they do.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.interfaces.attachment import ATTRIBUTES, Attachment, Detach, Handler, Interface, Layer, attach_to
from clearhead.interfaces.call import AttentionNotSeenError, Call, causal_mask, is_cross_attention, split_mask
from clearhead.interfaces.expected import looks_like_attention
from clearhead.interfaces.forward import named_arguments, unwrap_forward, wrap_forward
from clearhead.interfaces.layouts import head_count
from clearhead.interfaces.passes import CallMode
from clearhead.private_names import function_modes

NAME = "torch fused attention"
_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def find(model: nn.Module) -> list[Layer]:
    """Return the modules whose code names the function, or whose class is called attention."""
    return [
        Layer(path=path, module=module)
        for path, module in model.named_modules()
        if any("scaled_dot_product_attention" in method.__code__.co_names for method in _methods(type(module)))
        or looks_like_attention(module)
    ]


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the calls that the layer makes, in any thread and while its forward runs."""
    return attach_to(layer, handler, _SdpaAttachment)


INTERFACE = Interface(name=NAME, find=find, attach=attach, certain=False)


def attach_to_model(model: nn.Module, handler: Handler) -> Detach:
    """Put the handler at the calls of all modules of the model, while the model's forward runs."""
    return attach_to(Layer(path="(model)", module=model, interface=NAME), handler, _ModelAttachment)


def _methods(kind: Any) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        if base is nn.Module:
            return
        for value in vars(base).values():
            method = inspect.unwrap(value) if callable(value) else value
            if isinstance(method, FunctionType):
                yield method


class _SdpaAttachment(Attachment):
    """Intercepts the calls of one module.

    timm's classes write their attention out unless `fused_attn` is set, so a permanent handler sets it.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.fused: bool | None = None
        self.cross = False

    def install(self) -> None:
        if self.permanent and self.module.__dict__.get("fused_attn") is False:
            self.fused = False
            self.module.__dict__["fused_attn"] = True
        self.cross = is_cross_attention(self.module, self.name.rpartition(".")[2], type(self.module).__name__)
        wrap_forward(self.module, self)

    def remove(self) -> None:
        unwrap_forward(self.module, self)
        if self.fused is not None:
            self.module.__dict__["fused_attn"] = self.fused

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _is_active(self):  # the module calls itself
            return proceed(*args, **kwargs)
        mode = _SdpaMode(self)
        with mode:
            output = proceed(*args, **kwargs)
        if self.permanent and not mode.intercepted:
            raise AttentionNotSeenError(
                f"{self.name} ({type(module).__name__}) ran without calling torch's scaled_dot_product_attention, so "
                "its operator was not used: describe where its q, k, v are, or leave it out of layers="
            )
        return output

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the handlers on one call of the function."""
        name, module = self.caller()
        if module is None:
            return _ATTENTION(*args, **kwargs)
        arguments = named_arguments(_signature, *args, **kwargs)
        call = read_call(arguments, name=name, module=module, cross=self.cross)

        def compute() -> tuple[Tensor, Tensor]:
            output = _ATTENTION(*args, **kwargs)
            return output, output

        output, _ = self.run(call, compute)
        return output

    def caller(self) -> tuple[str, nn.Module | None]:
        """Return the path and the module that makes the call."""
        return self.name, self.module


class _ModelAttachment(_SdpaAttachment):
    """Intercepts the calls of all modules of a model."""

    attribute = ATTRIBUTES[1]

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.paths = {id(module): path or "(model)" for path, module in layer.module.named_modules()}

    def _is_handled(self, module: nn.Module) -> bool:
        """Return whether all handlers are at the module's own calls already: this one need not be read."""
        return all(id(module) in getattr(handler, "parts", ()) for handler in self.handlers)

    def caller(self) -> tuple[str, nn.Module | None]:
        """Return the innermost module of the model on the stack; None if its calls are handled already."""
        frame = sys._getframe(1)
        while frame is not None:
            candidate = frame.f_locals.get("self")
            if isinstance(candidate, nn.Module) and id(candidate) in self.paths:
                return self.paths[id(candidate)], None if self._is_handled(candidate) else candidate
            frame = frame.f_back  # type: ignore[assignment]
        return "", None


class _SdpaMode(CallMode):
    """Hands calls of torch's function to an attachment, in this thread.

    intercepted: whether there was one
    """

    def __init__(self, attachment: _SdpaAttachment) -> None:
        super().__init__()
        self.attachment, self.intercepted = attachment, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _ATTENTION:
            return func(*args, **(kwargs or {}))
        self.intercepted = True
        return self.attachment.attend(*args, **(kwargs or {}))


def _is_active(attachment: _SdpaAttachment) -> bool:
    modes = function_modes()
    return any(isinstance(mode, _SdpaMode) and mode.attachment is attachment for mode in modes)


def _signature(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """Have the signature of torch's builtin, which cannot be inspected."""


def read_call(arguments: dict[str, Any], *, name: str, module: nn.Module, cross: bool = False) -> Call:
    """Return the call with these arguments of torch's function."""
    q, k, v = arguments["query"], arguments["key"], arguments["value"]
    mask, bias = split_mask(arguments.get("attn_mask"))
    if arguments.get("is_causal", False):
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device).squeeze((0, 1))
    groups = q.shape[-3] // k.shape[-3] if arguments.get("enable_gqa", False) else 1
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
    lead, scale = q.shape[:-2], arguments.get("scale")
    heads, folded = head_count(module), None
    if q.ndim == 3:  # (b, n, d), or (b x heads, n, d)
        folded = heads if q.shape[0] % heads == 0 else 1
    return Call(
        name=name,
        module=module,
        interface=NAME,
        q=q,
        k=k.expand(*lead, *k.shape[-2:]),
        v=v.expand(*lead, *v.shape[-2:]),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=bias,
        dropout=float(arguments.get("dropout_p", 0.0)),
        groups=groups,
        cross=cross,
        folded=folded,
        windows_last=q.ndim == 5 and 1 < heads == q.shape[1],
    )
