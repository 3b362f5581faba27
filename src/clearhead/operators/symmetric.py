r"""Symmetric attention: softmax attention whose queries are its keys (Teo and Nguyen 2024, section 3).

k, v are the rows of the source's K, V; `scale` is 1/sqrt(D). The unnormalised weights are a symmetric matrix, so each
is computed once for both of its tokens; docs/theory/symmetric-kernel.md has the derivation.
"""

import math

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.softmax import slow_softmax_attention, softmax_attention, split_causal
from clearhead.operators.symmetric_kernel import kernel_supports, no_autocast, symmetric_output
from clearhead.private_names import forward_mode_active, functorch_active
from clearhead.shapes import Bool, Float, check_attention_operands

# Below this number of multiply-adds a call of the kernel costs more than the symmetry saves.
_MIN_KERNEL_OPERATIONS = 1 << 24
# The same over all iterations of a pursuit, each of which is several calls without the kernel.
_MIN_PURSUIT_OPERATIONS = 1 << 20
# Where tiles of plain torch are faster on the CPU than its fused kernel, forward and backward together.
_TILED_DTYPES = (torch.float64,)
_MIN_TILED_TOKENS = 2048
# Others are converted to single precision.
_COMPUTED_DTYPES = (torch.float32, torch.float64)
# Below it, and above its inverse, products of keys leave the range of single precision where their scores do not.
_LEAST_SCALE = 2.0**-60


def symmetric_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Return softmax attention whose queries are its keys, `softmax_attention(k, k, v)`, faster.

    .. math:: o_i = \sum_j w_{ij} v_j, \qquad w_{ij} \propto e^{s_{ij}}, \qquad s_{ij} = \text{scale}\; k_i \cdot k_j

    with sums over the tokens that the mask, which broadcasts to (..., n, n), leaves visible; a token without visible
    keys gets zeros. Rows of w sum to one, so each output lies in the convex hull of the visible values. `scale` is
    1/sqrt(d) if None. With `is_causal` a token also sees no later token.

    On the CPU in single precision, with no mask or a padding mask, the compiled kernel computes each weight once for
    both of its tokens, and causal attention over pairs of tokens that see each other only; half precision is converted
    for it. A causal mask is recognised, but `is_causal` is faster. Long inputs in double precision use tiles of plain
    torch.
    All other calls use torch's scaled_dot_product_attention, and so does single precision if the kernel is not
    installed (see `clearhead doctor`). Autocast does not change the dtype. Heads where scale |k|^2 spreads by more than
    150 are computed row by row: slower, with the same precision.
    """
    check_attention_operands(k, k, v, mask=mask)
    scale = resolve_scale(k, scale)
    mask, is_causal = split_causal(mask, k, is_causal=is_causal)
    key_mask = None
    fast = prefers_kernel(k, scale) or (not is_causal and _prefers_tiles(k, scale))
    if fast and mask is not None:
        key_mask = key_mask_of(mask, k)
        fast = key_mask is not None
    if not fast:
        with no_autocast(k):
            return softmax_attention(k, k, v, mask=mask, is_causal=is_causal, scale=scale)
    if k.ndim == 4 and k.dtype in _COMPUTED_DTYPES:
        return symmetric_output(k, v, key_mask, scale, is_causal)
    wide = torch.promote_types(k.dtype, torch.float32)
    out = symmetric_output(four_axes(k.to(wide)), four_axes(v.to(wide)), key_mask, scale, is_causal)
    return out.to(v.dtype).reshape(v.shape)


def slow_symmetric_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `symmetric_attention` as softmax attention whose queries are the keys."""
    return slow_softmax_attention(k, k, v, mask=mask, scale=scale)


def resolve_scale(k: Tensor, scale: float | None) -> float:
    """Return the scale, 1/sqrt(d) if None. Raise ValueError for a tensor."""
    if isinstance(scale, Tensor):
        raise InputError(
            "expected a number as scale; got a tensor, which would get no gradient: multiply k by its root instead"
        )
    return 1 / math.sqrt(k.shape[-1]) if scale is None else scale


def key_mask_of(mask: Bool[Tensor, "..."], k: Float[Tensor, "*b n d"]) -> Bool[Tensor, "batch n"] | None:
    """Return a mask that is the same for every query and head as a key mask (batch, n); None for any other mask."""
    mask = mask.reshape((1,) * (k.ndim - mask.ndim) + mask.shape)
    by_query, by_head = mask.shape[-2] != 1, k.ndim > 3 and mask.shape[-3] != 1
    if by_query or by_head:
        return None
    tokens, batch = (mask[..., 0, 0, :], k.shape[:-3]) if k.ndim > 3 else (mask[..., 0, :], k.shape[:-2])
    return tokens.expand(*batch, k.shape[-2]).reshape(math.prod(batch), k.shape[-2]).contiguous()


def four_axes(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "b h n d"]:
    """Return x with one axis for the batch and one for the heads; three axes are a batch of one head each."""
    if x.ndim == 4:
        return x
    return x.flatten(0, -4) if x.ndim > 4 else x.reshape(math.prod(x.shape[:-2]), 1, *x.shape[-2:])


def prefers_kernel(k: Tensor, scale: float, *, iterations: int = 1) -> bool:
    """Return True if the compiled kernel supports these keys, in single precision, and is faster for their size."""
    least = _MIN_KERNEL_OPERATIONS if iterations == 1 else _MIN_PURSUIT_OPERATIONS
    large = k.numel() > 0 and k.numel() * k.shape[-2] * iterations >= least
    return large and k.dtype is not torch.float64 and _custom_operator_works(scale) and kernel_supports(k)


def _prefers_tiles(k: Tensor, scale: float) -> bool:
    large = k.numel() > 0 and k.shape[-2] >= _MIN_TILED_TOKENS and k.dtype in _TILED_DTYPES
    return large and k.device.type == "cpu" and _custom_operator_works(scale)


def _custom_operator_works(scale: float) -> bool:
    """Return True if scores of this scale fit into single precision, and no transform other than autograd is active."""
    # torch.func (vmap, grad, jvp) and forward-mode differentiation do not see into custom operators.
    transformed = functorch_active() or forward_mode_active()
    return not transformed and (scale == 0 or _LEAST_SCALE <= scale <= 1 / _LEAST_SCALE)
