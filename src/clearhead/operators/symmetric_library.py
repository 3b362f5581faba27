"""Symmetric attention as an operator of torch's own library, so that torch.compile and autograd know it.

It takes (b, h, n, d), padding as `seen` (b, n), and no other mask; `symmetric.py` is its door. The compiled kernel
computes where it is there, and tiles of plain torch elsewhere.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.kernels.calls import Attended, attend, attend_backward, beside_tokens, room_for_attention
from clearhead.kernels.library import Kernel, kernel
from clearhead.operators.symmetric_tiles import tiles_backward, tiles_forward

__all__ = ["as_given", "check_operands", "kernel_for", "kernel_takes", "symmetric"]


def kernel_takes(device: torch.device) -> bool:
    """Whether the compiled kernel is there and computes on this device."""
    return device.type == "cpu" and _kernel_is_there()


def _kernel_is_there() -> bool:
    return kernel() is not None


# What torch.compiler.assume_constant_result does, without importing all of the compiler.
_kernel_is_there._dynamo_marked_constant = True  # type: ignore[attr-defined]


def kernel_for(x: Tensor) -> Kernel | None:
    """The compiled kernel, if it takes this tensor: it computes in single precision."""
    return kernel() if x.dtype is torch.float32 and kernel_takes(x.device) else None


def check_operands(k: Tensor, v: Tensor, seen: Tensor | None) -> None:
    """Raise ValueError unless k (b, h, n, d), v (b, h, n, e) and seen (b, n) fit: the kernel gets addresses alone."""
    fits = k.ndim == v.ndim == 4 and k.shape[:3] == v.shape[:3] and k.dtype == v.dtype and k.device == v.device
    if seen is not None:
        fits = fits and seen.shape == (k.shape[0], k.shape[2]) and seen.dtype is torch.bool and seen.device == k.device
    if not fits:
        operands = {"k": k, "v": v, "seen": seen}
        got = ", ".join(
            f"{name} {tuple(x.shape)} {x.dtype} on {x.device}" for name, x in operands.items() if x is not None
        )
        raise InputError(
            f"expected k (b, h, n, d) and v (b, h, n, e) of one dtype and device, and a boolean seen (b, n); got {got}"
        )


def as_given(x: Tensor) -> AbstractContextManager[None]:
    """Within it, products have the dtype of their factors: autocast would round them once more."""
    if not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


@torch.library.custom_op("clearhead::symmetric_attention", mutates_args=())
def symmetric(k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The output, what its rows were divided by, and which heads were computed the plain way."""
    check_operands(k, v, seen)
    compiled = kernel_for(k)
    with as_given(k):
        if compiled is None:
            attended = tiles_forward(k, v, seen=seen, scale=scale)
        else:
            attended = attend(compiled, k, v, seen=seen, scale=scale)
    return attended.out, attended.totals, attended.plain


@symmetric.register_fake
def _(k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    room = room_for_attention(k, v)
    return room.out, room.totals, room.plain


@torch.library.custom_op("clearhead::symmetric_attention_backward", mutates_args=())
def _symmetric_backward(
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    scale: float,
    out: Tensor,
    totals: Tensor,
    plain: Tensor,
) -> tuple[Tensor, Tensor]:
    attended, compiled = Attended(out, totals, plain), kernel_for(k)
    with as_given(k):
        if compiled is None:
            return tiles_backward(gradient, k, v, attended, seen=seen, scale=scale)
        return attend_backward(compiled, gradient, k, v, attended, seen=seen, scale=scale)


@_symmetric_backward.register_fake
def _(gradient: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return beside_tokens(k), beside_tokens(v)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
    k, v, seen, ctx.scale = inputs
    ctx.save_for_backward(k, v, seen, *output)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, None, None]:
    if gradient is None:
        return None, None, None, None
    k, v, seen, out, totals, plain = ctx.saved_tensors
    return *_symmetric_backward(gradient, k, v, seen, ctx.scale, out, totals, plain), None, None


symmetric.register_autograd(_gradient, setup_context=_keep)
