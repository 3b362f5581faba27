"""The door of layers that call torch's scaled_dot_product_attention: its calls within their forward are answered."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.sockets.call import Call
from clearhead.sockets.overriding import remove_wrapper, wrap_forward
from clearhead.sockets.places import Place, being_watched, crosses, place_of
from clearhead.sockets.sdpa import heads_of, read_call, signature
from clearhead.sockets.tap import AttentionNotSeenError, named_arguments

__all__ = ["SdpaDoor"]

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


class SdpaDoor:
    """Answer the calls that one module makes, in this thread and while its forward runs.

    timm's classes write their attention out unless `fused_attn` is set, so it is.
    """

    shows: ClassVar[bool] = False

    def __init__(self) -> None:
        self.fused: bool | None = None

    def open(self, module: nn.Module) -> None:
        """Stand before the module's forward."""
        if module.__dict__.get("fused_attn") is False:
            self.fused = False
            module.__dict__["fused_attn"] = True
        place = place_of(module)
        assert place is not None
        place.cross = crosses(module, place.name.rpartition(".")[2], type(module).__name__)
        wrap_forward(module, self)

    def close(self, module: nn.Module) -> None:
        """Leave the module as it was."""
        remove_wrapper(module, self)
        if self.fused is not None:
            module.__dict__["fused_attn"] = self.fused
            self.fused = None

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward, whose attention is answered by its place; it must have asked."""
        place = place_of(module)
        assert place is not None
        answering = _Answering(module, place)
        with answering:
            output = proceed(*args, **kwargs)
        if not answering.asked:
            raise AttentionNotSeenError(
                f"{place.name} ({type(module).__name__}) ran without calling torch's scaled_dot_product_attention, so "
                f"{place.traits.name} is not in it: describe where its q, k, v are, or leave it out of layers="
            )
        return output


class _Answering(TorchFunctionMode):
    """Answers scaled_dot_product_attention, by whatever name it was imported. torch keeps it to this thread."""

    def __init__(self, module: nn.Module, place: Place) -> None:
        super().__init__()
        self.module, self.place, self.asked = module, place, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _ATTENTION or being_watched():
            return func(*args, **(kwargs or {}))
        self.asked = True
        call = read_call(named_arguments(signature, *args, **(kwargs or {})))
        heads = heads_of(self.module)
        if call.q.ndim == 3:  # (b, n, d), or (b x heads, n, d)
            call = replace(call, folded=heads if call.q.shape[0] % heads == 0 else 1)
        if call.q.ndim == 5 and heads > 1 and call.q.shape[1] == heads:  # (b, heads, windows, n, d)
            return self.place.answer(self.module, _windows_first(call)).transpose(1, 2)
        return self.place.answer(self.module, call)


def _windows_first(call: Call) -> Call:
    """The call with its heads before n, where operators look for them."""

    def turned(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim < 3:
            return x
        return x.reshape((1,) * (5 - x.ndim) + x.shape).transpose(1, 2)

    q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, mask=turned(call.mask), bias=turned(call.bias))
