"""Symmetric attention as a custom operator of torch, so that torch.compile and autograd can use it.

It takes k (b, h, n, d), padding as key_mask (b, n), and no other mask than a causal one; call it through
`symmetric.py`. The compiled kernel computes it if it is installed, tiles of plain torch if not, which are not causal.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.kernels.calls import (
    Attended,
    allocate_attention,
    attend,
    attend_backward,
    attended_output,
    empty_by_token,
)
from clearhead.kernels.library import Kernel, kernel
from clearhead.operators.symmetric_tiles import tiles_backward, tiles_forward
from clearhead.private_names import (
    current_dispatch_mode,
    current_function_mode,
    functorch_active,
    is_batched_gradient,
    jit_tracing,
    mark_constant,
)

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


def kernel_supports(x: Tensor) -> bool:
    """Return True if the compiled kernel is installed and computes on the tensor's device."""
    return x.is_cpu and _kernel_installed()


def _kernel_installed() -> bool:
    return kernel() is not None


mark_constant(_kernel_installed)


def kernel_for(x: Tensor) -> Kernel | None:
    """Return the compiled kernel if it computes on this tensor's device and dtype, which must be float32."""
    return kernel() if x.dtype is torch.float32 and kernel_supports(x) else None


def check_operands(k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
    """Raise ValueError unless k (b, h, n, d), v (b, h, n, e) and key_mask (b, n) fit: the kernel only gets pointers."""
    fits = k.ndim == v.ndim == 4 and k.shape[:3] == v.shape[:3] and k.dtype == v.dtype and k.device == v.device
    if key_mask is not None:
        fits = fits and key_mask.shape == (k.shape[0], k.shape[2])
        fits = fits and key_mask.dtype is torch.bool and key_mask.device == k.device
    if not fits:
        operands = {"k": k, "v": v, "key_mask": key_mask}
        got = ", ".join(
            f"{name} {tuple(x.shape)} {x.dtype} on {x.device}" for name, x in operands.items() if x is not None
        )
        raise InputError(
            "expected k (b, h, n, d) and v (b, h, n, e) of one dtype and device, and a boolean key_mask (b, n); "
            f"got {got}"
        )


def no_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which autocast is off on the device of x, so that products keep their dtype."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def symmetric_output(k: Tensor, v: Tensor, key_mask: Tensor | None, scale: float, is_causal: bool) -> Tensor:
    """Return the output of `symmetric`.

    Where nobody records the call, the kernel is called without torch's dispatcher: that takes 2% to 4% of a call of ten
    milliseconds, because a long call leaves nothing of Python in the cache.
    """
    compiled = None if _is_recorded(k, v) else kernel_for(k)
    if compiled is None:
        out: Tensor = symmetric(k, v, key_mask, scale, is_causal)[0]
        return out
    check_operands(k, v, key_mask)
    return attended_output(compiled, k, v, visible=key_mask, scale=scale, causal=is_causal)


def _is_recorded(*operands: Tensor) -> bool:
    """Return True if autograd, a compiler, a tracer, a transform or a mode of torch must see the call."""
    recording = torch.is_grad_enabled()
    for x in operands:
        if type(x) not in _PLAIN_TENSORS or (recording and x.requires_grad):
            return True
    return (
        torch.compiler.is_compiling()
        or functorch_active()
        or current_dispatch_mode() is not None
        or current_function_mode() is not None
        or jit_tracing()
    )


@torch.library.custom_op("clearhead::symmetric_attention", mutates_args=())
def symmetric(
    k: Tensor, v: Tensor, key_mask: Tensor | None, scale: float, is_causal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the normalisers of its rows, and which heads were computed row by row."""
    check_operands(k, v, key_mask)
    compiled = kernel_for(k)
    if is_causal and compiled is None:
        raise InputError(f"causal symmetric attention needs the compiled kernel and float32 on the CPU; got {k.dtype}")
    with no_autocast(k):
        if compiled is None:
            attended = tiles_forward(k, v, key_mask=key_mask, scale=scale)
        else:
            attended = attend(compiled, k, v, visible=key_mask, scale=scale, causal=is_causal)
    return attended.out, attended.totals, attended.by_row


@symmetric.register_fake
def _(k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    buffers = allocate_attention(k, v)
    return buffers.out, buffers.totals, buffers.by_row


def _gradients(
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    scale: float,
    is_causal: bool,
    out: Tensor,
    totals: Tensor,
    by_row: Tensor,
) -> tuple[Tensor, Tensor]:
    attended, compiled = Attended(out, totals, by_row), kernel_for(k)
    with no_autocast(k):
        if compiled is None:
            return tiles_backward(gradient, k, v, attended, key_mask=key_mask, scale=scale)
        return attend_backward(compiled, gradient, k, v, attended, visible=key_mask, scale=scale, causal=is_causal)


_symmetric_backward = torch.library.custom_op("clearhead::symmetric_attention_backward", _gradients, mutates_args=())


@_symmetric_backward.register_fake
def _(gradient: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_by_token(k), empty_by_token(v)


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, float, bool], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    k, v, key_mask, ctx.scale, ctx.is_causal = inputs
    ctx.save_for_backward(k, v, key_mask, *output)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 5
    k, v, key_mask, *output = ctx.saved_tensors
    recorded = is_batched_gradient(gradient) or _is_recorded(gradient, k, v)
    backward = _symmetric_backward if recorded else _gradients
    return *backward(gradient, k, v, key_mask, ctx.scale, ctx.is_causal, *output), None, None, None


symmetric.register_autograd(_gradient, setup_context=_setup_context)
