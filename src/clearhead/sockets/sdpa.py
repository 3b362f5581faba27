"""The socket of every other model: torch.nn.functional.scaled_dot_product_attention, wherever it is called from."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.heads import Heads
from clearhead.sockets.tap import Tap, causal_mask, named_arguments, split_mask

__all__ = ["sdpa_socket"]

_NAME = "scaled_dot_product_attention"


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
    """The builtin has no signature to inspect; this is it."""


@contextmanager
def sdpa_socket(tap: Tap) -> Iterator[None]:
    """Watch torch's fused attention when a module of this model calls it.

    The name is replaced in torch.nn.functional and in the files of the model's classes that imported it. Which module
    calls is read off the stack, so that no hook has to sit on any module.
    """
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        return _attend(tap, original, *args, **kwargs)

    files = {sys.modules.get(type(module).__module__) for module in tap.model.modules()}
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
    out = original(*args, **kwargs)
    heads = _read(tap.names[id(module)], module, named_arguments(_signature, *args, **kwargs), out)
    replaced = tap.emit(heads)
    return out if replaced is None else _laid_out_as(out, replaced.to(out.dtype))


def _calling_module(tap: Tap) -> nn.Module | None:
    """The innermost module of the model on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, nn.Module) and id(candidate) in tap.names:
            return candidate
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _read(name: str, module: nn.Module, call: dict[str, Any], out: Tensor) -> Heads:
    q, k, v = call["query"], call["key"], call["value"]
    mask, bias = split_mask(call.get("attn_mask"))
    if call.get("is_causal", False):
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
    lead = q.shape[:-2]
    groups = q.shape[-3] // k.shape[-3] if call.get("enable_gqa", False) else 1
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
    scale = call.get("scale")
    return Heads(
        layer=0,
        name=name,
        q=_four_axes(q, module),
        k=_four_axes(k.expand(*lead, *k.shape[-2:]), module),
        v=_four_axes(v.expand(*lead, *v.shape[-2:]), module),
        out=_four_axes(out, module),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=_broadcast(mask, lead, module),
        bias=_broadcast(bias, lead, module),
        dropout=float(call.get("dropout_p", 0.0)),
        groups=groups,
        socket="torch fused attention",
    )


def _heads_of(module: nn.Module) -> int:
    for attribute in ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head"):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and count > 0:
            return count
    return 1


def _four_axes(x: Tensor, module: nn.Module) -> Tensor:
    """(b, h, n, d) from (n, d), (b, n, d) with heads folded into b where the module counts them, or (b, h, w, n, d)."""
    if x.ndim == 4:
        return x
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        heads = _heads_of(module)
        return x.reshape(-1, heads, *x.shape[1:]) if heads > 1 and x.shape[0] % heads == 0 else x.unsqueeze(1)
    return x.flatten(2, -3).transpose(1, 2).flatten(0, 1)


def _laid_out_as(original: Tensor, replaced: Tensor) -> Tensor:
    """The inverse of `_four_axes`."""
    if original.ndim <= 4:
        return replaced.reshape(original.shape)
    b = original.shape[0]
    return replaced.reshape(b, -1, *replaced.shape[1:]).transpose(1, 2).reshape(original.shape)


def _broadcast(x: Tensor | None, lead: torch.Size, module: nn.Module) -> Tensor | None:
    """A mask or bias in four axes. One that no leading axis varies stays small."""
    if x is None:
        return None
    if x.ndim <= 2 or all(size == 1 for size in x.shape[:-2]):
        return x.reshape(1, 1, *x.shape[-2:])
    if x.ndim == len(lead) + 2 == 4:
        return x
    return _four_axes(x.expand(*lead, *x.shape[-2:]), module)
