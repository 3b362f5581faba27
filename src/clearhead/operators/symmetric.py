r"""Symmetric attention: softmax attention whose queries are its keys (Teo and Nguyen 2024, section 3).

Names here and there: k, v are the rows of K, V; `scale` is 1/sqrt(D). The unnormalised weights are a symmetric matrix,
so each needs computing once for both of its tokens; docs/theory/symmetric-kernel.md has the derivation.
"""

import math

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric_library import as_given, kernel_takes, symmetric
from clearhead.shapes import Bool, Float, check_attention_operands

__all__ = [
    "checked_scale",
    "four_axes",
    "kernel_is_worth_it",
    "padding",
    "symmetric_attention",
]

# Below so many multiply-adds a call into the library costs more than the symmetry saves.
_WORTH_A_CALL = 1 << 24
# Of all iterations of a pursuit, which without the kernel are several calls each.
_WORTH_A_PURSUIT = 1 << 20
# Where tiles of plain torch are faster on the CPU than its own kernel, forward and backward together.
_TILED_DTYPES = (torch.float64,)
_WORTH_TILES = 2048
# Beyond it, and its inverse, products of keys are lost in single precision where their scores are not.
_LEAST_SCALE = 2.0**-60


def symmetric_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Average the values, each weighted by how its key agrees with the reader's own key.

    .. math:: o_i = \sum_j w_{ij} v_j, \qquad w_{ij} \propto e^{s_{ij}}, \qquad s_{ij} = \text{scale}\; k_i \cdot k_j

    with sums over the tokens that the mask, which broadcasts to (..., n, n), leaves visible; a token that sees none
    gets zeros. Rows of w sum to one, so each output lies in the convex hull of the visible values. `scale` is 1/sqrt(d)
    unless given. It is `softmax_attention(k, k, v)`, faster.

    On the CPU in single precision, with no mask or one that hides the same tokens from all, the compiled kernel
    computes each weight once for both of its tokens; half precision is widened for it. Long inputs in double precision
    go through tiles of plain torch. All else goes to torch's scaled_dot_product_attention, as single precision does
    where the kernel is not installed (`clearhead doctor` tells). Autocast does not change the dtype. Heads where
    scale |k|^2 spreads by more than 150 are computed row by row: they cost more, and are as exact.
    """
    check_attention_operands(k, k, v, mask=mask)
    scale = checked_scale(k, scale)
    seen = None
    fast = kernel_is_worth_it(k, scale) or _tiles_are_worth_it(k, scale)
    if fast and mask is not None:
        seen = padding(mask, k)
        fast = seen is not None
    if not fast:
        with as_given(k):
            return softmax_attention(k, k, v, mask=mask, scale=scale)
    wide = torch.promote_types(k.dtype, torch.float32)
    out: Tensor
    out, _, _ = symmetric(four_axes(k.to(wide)), four_axes(v.to(wide)), seen, scale)
    return out.to(v.dtype).reshape(v.shape)


def checked_scale(k: Tensor, scale: float | None) -> float:
    """The scale, 1/sqrt(d) if there is none."""
    if isinstance(scale, Tensor):
        raise InputError(
            "expected a number as scale; got a tensor, which would get no gradient: multiply k by its root"
        )
    return 1 / math.sqrt(k.shape[-1]) if scale is None else scale


def padding(mask: Bool[Tensor, "..."], k: Float[Tensor, "*b n d"]) -> Bool[Tensor, "batch n"] | None:
    """Which tokens are there, if that is all that the mask says: the same for every query and every head; else None."""
    mask = mask.reshape((1,) * (k.ndim - mask.ndim) + mask.shape)
    by_query, by_head = mask.shape[-2] != 1, k.ndim > 3 and mask.shape[-3] != 1
    if by_query or by_head:
        return None
    tokens, batch = (mask[..., 0, 0, :], k.shape[:-3]) if k.ndim > 3 else (mask[..., 0, :], k.shape[:-2])
    return tokens.expand(*batch, k.shape[-2]).reshape(math.prod(batch), k.shape[-2]).contiguous()


def four_axes(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "b h n d"]:
    """The same numbers with one axis for the batch and one for the heads; three axes are a batch of one head each."""
    if x.ndim == 4:
        return x
    return x.flatten(0, -4) if x.ndim > 4 else x.reshape(math.prod(x.shape[:-2]), 1, *x.shape[-2:])


def kernel_is_worth_it(k: Tensor, scale: float, *, iterations: int = 1) -> bool:
    """Whether the compiled kernel takes these keys, widened to single precision, and gains by it."""
    least = _WORTH_A_CALL if iterations == 1 else _WORTH_A_PURSUIT
    large = k.numel() > 0 and k.numel() * k.shape[-2] * iterations >= least
    return large and k.dtype is not torch.float64 and _library_serves(scale) and kernel_takes(k.device)


def _tiles_are_worth_it(k: Tensor, scale: float) -> bool:
    large = k.numel() > 0 and k.shape[-2] >= _WORTH_TILES and k.dtype in _TILED_DTYPES
    return large and k.device.type == "cpu" and _library_serves(scale)


def _library_serves(scale: float) -> bool:
    """Whether scores of this scale fit into single precision, and only backward-mode gradients may be asked for."""
    # torch.func (vmap, grad, jvp) and forward-mode differentiation do not see into operators of torch's library.
    transformed = torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    return not transformed and (scale == 0 or _LEAST_SCALE <= scale <= 1 / _LEAST_SCALE)
