"""The socket of Hugging Face models: the attention interface through which their layers find an attention function.

While it is open, the interface hands out the function it would have handed out anyway, wrapped. The model's config, its
mask functions and its choice of implementation stay untouched, so padding and causality arrive exactly as the model
built them: registering a function under a new name without its mask function silently drops both.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from clearhead.sockets.call import Call
from clearhead.sockets.described import AttentionSpec
from clearhead.sockets.tap import Tap, causal_mask, named_arguments, split_mask, windows_of

__all__ = ["INTERFACE_FREE", "OWN_CONFIG", "huggingface_socket", "read_call", "writes_masks_out"]

INTERFACE_FREE = (
    AttentionSpec(
        module="transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention",
        q="q", k="k", v="v", out="o", heads="num_attention_heads", mask="attention_mask", bias="position_bias",
    ),
)  # fmt: skip
"""Descriptions of layers that do not ask the interface and write their attention out."""


@contextmanager
def huggingface_socket(tap: Tap) -> Iterator[None]:
    """Watch every layer of the model that asks an attention interface for its function."""
    with ExitStack() as stack:
        for interface in _interfaces(tap.model):
            stack.enter_context(_wrapped_interface(interface, tap))
        yield


def _interfaces(model: nn.Module) -> list[Any]:
    """Each attention interface that the files of the model's classes refer to: the shared one, and a file's own."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not hasattr(library, "AttentionInterface"):
        return []
    files = {sys.modules.get(type(module).__module__) for module in model.modules()} - {None}
    globals_ = [value for file in files for value in vars(file).values()]
    return list({id(value): value for value in globals_ if isinstance(value, library.AttentionInterface)}.values())


@contextmanager
def _wrapped_interface(interface: Any, tap: Tap) -> Iterator[None]:
    own = vars(interface).get("get_interface")
    original = interface.get_interface

    def get_interface(implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(implementation, default)
        return functools.partial(_attend, tap, function, function is not default)

    interface.get_interface = get_interface
    try:
        yield
    finally:
        if own is None:
            del interface.get_interface
        else:
            interface.get_interface = own


def _attend(
    tap: Tap, function: Callable[..., Any], rebuilds_causality: bool, module: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    name = tap.names.get(id(module))
    if name is None or tap.inside or id(module) in tap.claimed:
        return function(module, *args, **kwargs)
    with tap.busy():
        result = function(module, *args, **kwargs)
    arguments = named_arguments(function, module, *args, **kwargs)
    call = read_call(module, arguments, rebuilds_causality=rebuilds_causality and not writes_masks_out(module))
    heads = call.seen(
        name=name,
        out=result[0].view(*call.q.transpose(1, 2).shape[:3], -1).transpose(1, 2),
        windows=windows_of(module, result[0], tap),
        socket="Hugging Face attention interface",
    )
    replaced = tap.emit(heads, result[0])
    if replaced is None:
        return result
    out = replaced.to(result[0].dtype).transpose(1, 2).contiguous().view(result[0].shape)
    return (out, *result[1:])


OWN_CONFIG = "_clearhead_own_config"
"""Where the config of a swapped layer keeps the model's own, of which it is a copy under another name of attention."""


def writes_masks_out(module: nn.Module) -> bool:
    """Whether another operator is in the layer of a model that has eager attention: no mask then means none."""
    own = getattr(getattr(module, "config", None), OWN_CONFIG, None)
    return own is not None and own._attn_implementation in (None, "eager")


def read_call(module: nn.Module, call: dict[str, Any], *, rebuilds_causality: bool) -> Call:
    """What a layer asks of its attention function, by the names that transformers gives the arguments.

    rebuilds_causality: whether no mask means that the module's own word on causality holds, as in transformers' sdpa
    """
    q, k, v = call["query"], call["key"], call["value"]
    added = call.get("attention_mask")
    mask, bias = split_mask(added)
    said = call.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if said is None else said)
    if added is None and rebuilds_causality and q.shape[-2] > 1 and causal:
        mask = causal_mask(q.shape[-2], k.shape[-2], q.device)
    position = call.get("position_bias")
    if position is not None:
        hidden, position = split_mask(position)
        mask = hidden if mask is None else mask if hidden is None else mask & hidden
        bias = position if bias is None else bias if position is None else bias + position
    groups = q.shape[1] // k.shape[1]
    scale = call.get("scaling")
    sinks = call.get("s_aux")
    return Call(
        q=q,
        k=k.repeat_interleave(groups, dim=1) if groups > 1 else k,
        v=v.repeat_interleave(groups, dim=1) if groups > 1 else v,
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=bias,
        softcap=call.get("softcap"),
        sinks=None if sinks is None else sinks.reshape(-1),
        dropout=float(call.get("dropout", 0.0)) if module.training else 0.0,
        groups=groups,
        causal=causal,
        window=call.get("sliding_window"),
    )
