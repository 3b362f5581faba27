"""The socket of every other model: torch.nn.functional.scaled_dot_product_attention, wherever it is called from."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.operators import softmax
from clearhead.sockets.call import Call
from clearhead.sockets.tap import AttentionNotSeenError, Tap, causal_mask, named_arguments, split_mask

__all__ = ["heads_of", "read_call", "sdpa_socket", "show_call", "signature"]

_NAME = "scaled_dot_product_attention"


def signature(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """The builtin has no signature to inspect; this is it."""


@contextmanager
def sdpa_socket(tap: Tap) -> Iterator[None]:
    """Watch torch's fused attention when a module of this model calls it.

    The name is replaced in torch.nn.functional, in the files of the model's classes that imported it, and in the
    operator through which Clearhead's own modules call it. Which module calls is read off the stack, so that no hook
    has to sit on any module.
    """
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        return _attend(tap, original, *args, **kwargs)

    files = {sys.modules.get(name) for name in {softmax.__name__, *(type(m).__module__ for m in tap.model.modules())}}
    holders = [file for file in files if file is not None and vars(file).get(_NAME) is original]
    holders = [functional, *(file for file in holders if file is not functional)]
    for holder in holders:
        setattr(holder, _NAME, attend)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, _NAME, original)


def _attend(tap: Tap, original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    module = None if tap.inside else _calling_module(tap)
    if module is None or id(module) in tap.claimed:
        return original(*args, **kwargs)
    with tap.busy():  # another operator may be swapped in there, with calls of its own
        out = original(*args, **kwargs)
    return show_call(tap, module, read_call(named_arguments(signature, *args, **kwargs)), out, "torch fused attention")


def show_call(tap: Tap, module: nn.Module, call: Call, out: Tensor, socket: str) -> Tensor:
    """Hand one call of any axes to the tap; the output that the model shall go on with."""
    layout = _layout(out, module, tap.inputs)
    lead = call.q.shape[:-2]
    flat = dataclasses.replace(
        call,
        q=layout.four_axes(call.q),
        k=layout.four_axes(call.k),
        v=layout.four_axes(call.v),
        mask=_broadcast(call.mask, lead, layout),
        bias=_broadcast(call.bias, lead, layout),
    )
    name = tap.names[id(module)]
    seen = flat.seen(name=name, out=layout.four_axes(out), windows=layout.windows, socket=socket)
    replaced = tap.emit(seen, out)
    return out if replaced is None else layout.undone(replaced.to(out.dtype), out)


def _calling_module(tap: Tap) -> nn.Module | None:
    """The innermost module of the model on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, nn.Module) and id(candidate) in tap.names:
            return candidate
        frame = frame.f_back  # type: ignore[assignment]
    return None


def read_call(call: dict[str, Any]) -> Call:
    """What torch's fused attention is asked, by the names of its arguments."""
    q, k, v = call["query"], call["key"], call["value"]
    mask, bias = split_mask(call.get("attn_mask"))
    if call.get("is_causal", False):
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device).squeeze((0, 1))
    groups = q.shape[-3] // k.shape[-3] if call.get("enable_gqa", False) else 1
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
    lead, scale = q.shape[:-2], call.get("scale")
    return Call(
        q=q,
        k=k.expand(*lead, *k.shape[-2:]),
        v=v.expand(*lead, *v.shape[-2:]),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=bias,
        dropout=float(call.get("dropout_p", 0.0)),
        groups=groups,
    )


def heads_of(module: nn.Module) -> int:
    """How many heads the module says that it has, 1 if it says nothing."""
    for attribute in ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head"):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and count > 0:
            return count
    return 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Which of the axes before (n, d) are batch, heads and windows.

    `folded` heads lie inside the first axis, as (b, heads); otherwise `axis` is theirs, None if there is none.
    """

    folded: int = 1
    axis: int | None = None
    windows: int = 1

    def four_axes(self, x: Tensor) -> Tensor:
        """(b, h, n, d), with windows beside each other in b."""
        if self.folded > 1:
            return x.reshape(-1, self.folded, *x.shape[1:])
        if self.axis is None:
            return x.reshape(-1, 1, *x.shape[-2:])
        return x.movedim(self.axis, -3).flatten(0, -4)

    def undone(self, x: Tensor, original: Tensor) -> Tensor:
        """The inverse of `four_axes`, in the shape of the original."""
        if self.folded > 1 or self.axis is None:
            return x.reshape(original.shape)
        heads_last = original.movedim(self.axis, -3).shape
        return x.reshape(heads_last).movedim(-3, self.axis)


def _layout(out: Tensor, module: nn.Module, inputs: int) -> _Layout:
    """Read the axes off their lengths and the module's number of heads.

    Three axes are (b, n, d), or (b x heads, n, d) if the first is a multiple of inputs x heads.
    Of five, the one as long as there are heads is theirs and the other counts windows.
    """
    heads = heads_of(module)
    if out.ndim == 2:
        return _Layout()
    if out.ndim == 3:
        fold = heads > 1 and out.shape[0] % (heads * max(inputs, 1)) == 0
        return _Layout(folded=heads if fold else 1)
    if out.ndim == 4:
        return _Layout(axis=1)
    fitting = [axis for axis in (1, 2) if out.shape[axis] == heads]
    if out.ndim != 5 or not fitting:
        raise AttentionNotSeenError(
            f"{type(module).__name__} calls attention with axes {tuple(out.shape)} and says of no one that it is its "
            "heads; describe where q, k, v are"
        )
    return _Layout(axis=fitting[0], windows=out.shape[3 - fitting[0]])


def _broadcast(x: Tensor | None, lead: torch.Size, layout: _Layout) -> Tensor | None:
    """A mask or bias in four axes. One that no leading axis varies stays small."""
    if x is None:
        return None
    if x.ndim <= 2 or all(size == 1 for size in x.shape[:-2]):
        return x.reshape(1, 1, *x.shape[-2:])
    if x.ndim == len(lead) + 2 == 4:
        return x
    return layout.four_axes(x.expand(*lead, *x.shape[-2:]))
