"""Principal attention pursuit on the compiled kernel, all iterations in one call, as a custom operator of torch.

It takes k (b, h, n, d), padding as key_mask (b, n), and no other mask than a causal one; call it through `pursuit.py`.
"""

from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.kernels.calls import Pursued, Schedule, allocate_pursuit, empty_by_token, pursue, pursue_backward
from clearhead.operators.symmetric_kernel import check_operands, kernel_for


@torch.library.custom_op("clearhead::pursuit", mutates_args=())
def pursuit(
    k: Tensor,
    v: Tensor,
    thresholds: Tensor,
    key_mask: Tensor | None,
    iterations: int,
    pull: float,
    scale: float,
    is_causal: bool,
    for_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the last iterate; with `for_gradient` also the iterates that the gradient needs.

    thresholds: (b, h, n)
    pull: 2 for the published sign of the dual variable, 0 for the sign of ADMM

    Raises ValueError without the compiled kernel.
    """
    check_operands(k, v, key_mask)
    compiled = kernel_for(k)
    if compiled is None or k.shape != v.shape or thresholds.shape != k.shape[:3] or thresholds.dtype is not k.dtype:
        raise InputError(
            "expected the compiled kernel, and k, v (b, h, n, d), thresholds (b, h, n), all float32 on the CPU; got "
            f"k {tuple(k.shape)} {k.dtype}, v {tuple(v.shape)}, thresholds {tuple(thresholds.shape)} {thresholds.dtype}"
        )
    schedule = Schedule(iterations, pull, scale, key_mask, is_causal)
    pursued = pursue(compiled, k, v, thresholds, schedule, for_gradient=for_gradient)
    return pursued.out, pursued.between, pursued.totals, pursued.by_row


@pursuit.register_fake
def _(
    k: Tensor, v: Tensor, thresholds: Tensor, key_mask: Tensor | None, iterations: int, *options: Any
) -> tuple[Tensor, ...]:
    *_, for_gradient = options
    buffers = allocate_pursuit(k, v, iterations, for_gradient=for_gradient)
    return buffers.out, buffers.between, buffers.totals, buffers.by_row


@torch.library.custom_op("clearhead::pursuit_backward", mutates_args=())
def _pursuit_backward(
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    thresholds: Tensor,
    key_mask: Tensor | None,
    iterations: int,
    pull: float,
    scale: float,
    is_causal: bool,
    out: Tensor,
    between: Tensor,
    totals: Tensor,
    by_row: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    compiled = kernel_for(k)
    assert compiled is not None, "the backward pass of the kernel ran without the kernel"
    schedule = Schedule(iterations, pull, scale, key_mask, is_causal)
    pursued = Pursued(out, between, totals, by_row)
    if len(totals) != iterations:  # the forward pass ran without `for_gradient`
        pursued = pursue(compiled, k, v, thresholds, schedule, for_gradient=True)
    return pursue_backward(compiled, gradient, k, v, thresholds, schedule, pursued)


@_pursuit_backward.register_fake
def _(gradient: Tensor, k: Tensor, v: Tensor, thresholds: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_by_token(k), empty_by_token(v), torch.empty_like(thresholds, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    k, v, thresholds, key_mask, *ctx.settings, _ = inputs
    ctx.save_for_backward(k, v, thresholds, key_mask, *output)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    unused = (None,) * 6
    if gradient is None:
        return (None, None, None, *unused)
    k, v, thresholds, key_mask, *output = ctx.saved_tensors
    return *_pursuit_backward(gradient, k, v, thresholds, key_mask, *ctx.settings, *output), *unused


pursuit.register_autograd(_gradient, setup_context=_setup_context)
