"""torch.nn.MultiheadAttention, alone and in torch's encoder layers, on their fused paths and off them.

In evaluation without gradients torch computes a whole encoder layer in one kernel that calls no module. Handlers that
only record leave it there: the model gets the kernel's own output, to the bit, and the layer runs a second time on its
open path, where the attention is called. A function mode, which is local to its thread, takes it there. A handler that
replaces the output keeps the layer off the fused path with a hook on its attention; other layers stay on it.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.interfaces import sdpa
from clearhead.interfaces.attachment import Attachment, Detach, Handler, Interface, Layer, attach_to
from clearhead.interfaces.forward import named_arguments, unwrap_forward, wrap_forward
from clearhead.interfaces.passes import CallMode, with_suspended_modes, without_modes
from clearhead.interfaces.torch_mha_call import TorchCall, nested_rows, padded

NAME = "torch.nn.MultiheadAttention"
_AROUND = (nn.TransformerEncoderLayer, nn.TransformerEncoder)


def find(model: nn.Module) -> list[Layer]:
    """Return every torch.nn.MultiheadAttention, with the encoder layers and encoders around it."""
    modules = dict(model.named_modules())
    around = {path: module for path, module in modules.items() if isinstance(module, _AROUND)}
    layers = []
    for path, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            outer = tuple(outer for name, outer in around.items() if not name or path.startswith(name + "."))
            # A fused encoder layer does not call its attention.
            runs_in = next((other for other in outer if isinstance(other, nn.TransformerEncoderLayer)), None)
            layers.append(Layer(path=path, module=module, details=outer, runs_in=runs_in))
    return layers


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the module's attention calls."""
    if handler.permanent and _has_own_forward(layer.module):
        return sdpa.attach(replace(layer, interface=sdpa.NAME), handler)
    return attach_to(layer, handler, _TorchAttachment)


INTERFACE = Interface(name=NAME, find=find, attach=attach)


def _has_own_forward(module: nn.Module) -> bool:
    """Return whether the module is of a subclass with another forward, which cannot be replaced."""
    return type(module).forward is not nn.MultiheadAttention.forward


class _Calls(threading.local):
    """The number of intercepted calls in this thread."""

    def __init__(self) -> None:
        self.count = 0


_CALLS = _Calls()


class _TorchAttachment(Attachment):
    """Wraps the forward of one module and of the encoder layers and encoders around it."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.around = [
            (module, (_EncoderLayer if isinstance(module, nn.TransformerEncoderLayer) else _Encoder)(self))
            for module in layer.details or ()
        ]
        self.hook: int | None = None

    def install(self) -> None:
        wrap_forward(self.module, self)
        for module, wrapper in self.around:
            wrap_forward(module, wrapper)
        self.changed()

    def changed(self) -> None:
        if self.replaces and self.hook is None:
            self.hook = self.module.register_forward_pre_hook(_no_op).id
        elif not self.replaces:
            self._remove_hook()

    def remove(self) -> None:
        unwrap_forward(self.module, self)
        for module, wrapper in self.around:
            unwrap_forward(module, wrapper)
        self._remove_hook()

    def _remove_hook(self) -> None:
        if self.hook is not None:
            self.module._forward_pre_hooks.pop(self.hook, None)
            self.hook = None

    def __call__(self, module: nn.MultiheadAttention, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward with the handlers at its attention."""
        if not torch.compiler.is_compiling():
            _CALLS.count += 1
        if _has_own_forward(module):
            arguments = named_arguments(proceed, *args, **kwargs)
        else:  # a forward that others have set may have any signature
            arguments = named_arguments(nn.MultiheadAttention.forward, module, *args, **kwargs)
        operands = TorchCall.read(module, arguments)
        results: list[tuple[Tensor, Tensor | None]] = []

        def compute() -> tuple[Tensor, Tensor]:
            state = torch.get_rng_state() if operands.dropout else None
            with without_modes():
                results.append(proceed(*args, **kwargs))
                out = operands.attention_output(state)
                operands.check(self.name, call, out, results[0][0])
            return out, results[0][0]

        with with_suspended_modes():  # so that the linear maps of q, k and v are seen
            call = operands.call(self.name, NAME)
        out, own = self.run(call, compute)
        if results and out is own.output:
            return results[0]
        joined = out.to(module.out_proj.weight.dtype).transpose(1, 2).flatten(2)
        output = operands.in_layout_of_call(module.out_proj(joined))
        if arguments["query"].is_nested:
            assert operands.key_padding_mask is not None
            output = nested_rows(output, operands.key_padding_mask)
        if results:
            return output, results[0][1]
        return output, operands.weights_for_call(call.weights[0]) if call.weights else None


class _Encoder:
    """A wrapper of torch's encoder, which nests padded inputs unless function modes are active."""

    def __init__(self, attachment: _TorchAttachment) -> None:
        self.attachment = attachment

    @property
    def permanent(self) -> bool:
        return self.attachment.permanent

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return proceed(*args, **kwargs)
        with without_modes():
            return proceed(*args, **kwargs)


class _EncoderLayer(_Encoder):
    """A wrapper of torch's encoder layer: where no attention was called in it, its open path runs too."""

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], src: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return proceed(src, *args, **kwargs)
        with without_modes():
            if self.attachment.replaces:
                return _without_nesting(proceed, src, *args, **kwargs)
            calls = _CALLS.count
            output = proceed(src, *args, **kwargs)
            if _CALLS.count == calls:
                with _OpenPath():
                    _without_nesting(proceed, src, *args, **kwargs)
        return output


class _OpenPath(CallMode):
    """Keeps torch's encoder layers off their fused path in this thread. A hook would do so in every thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _no_op(*_: Any) -> None:
    """Do nothing. The presence of a hook keeps torch off the fused encoder path."""


def _without_nesting(proceed: Callable[..., Any], src: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run an encoder layer's forward on a padded tensor with its mask if it is called with a nested one."""
    if not src.is_nested:
        return proceed(src, *args, **kwargs)
    whole, padding = padded(src)
    kwargs = named_arguments(proceed, whole, *args, **kwargs) | {"src_key_padding_mask": padding}
    return nested_rows(proceed(kwargs.pop("src"), **kwargs), padding)
