r"""Principal attention pursuit (PAP): the iterations of RPC-Attention (Teo and Nguyen 2024, algorithm 1).

Names here and there: k, v, l are the rows of K, V, L; `dual` is Y / mu; `threshold` is lambda / mu, which is all that
mu enters through. With :math:`x - \operatorname{shrink}_t(x) = \operatorname{clamp}(x, \pm t)` the sparse part S is
never formed, and the dual update after the last iteration, which nothing reads, is left out.
"""

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.component_pursuit import DualSign
from clearhead.operators.pursuit_library import pursuit
from clearhead.operators.pursuit_options import Pursuit
from clearhead.operators.pursuit_steps import Attending, pursue_by_parts
from clearhead.operators.symmetric import (
    checked_scale,
    four_axes,
    kernel_is_worth_it,
    padding,
)
from clearhead.operators.symmetric_library import as_given
from clearhead.shapes import Bool, Float, ShapeError, broadcasts, check_attention_operands

__all__ = ["principal_attention_pursuit"]

_STEPS: dict[int, Pursuit] = {-1: Pursuit(dual_sign=-1), 1: Pursuit(dual_sign=1)}


def principal_attention_pursuit(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    iterations: int,
    threshold: Float[Tensor, "..."] | float,
    dual_sign: DualSign = -1,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n d"]:
    r"""Iterate symmetric attention on keys whose outlying entries are taken out, from l = dual = 0.

    .. math:: z = k - l + \text{dual}, \quad c = \operatorname{clamp}(z, \pm t), \quad
        q = l - (1 - \text{sign})\,\text{dual} + c, \quad
        l' = \operatorname{attention}(q, q, v), \quad \text{dual}' = c + l - l'

    iterations: one is exactly symmetric attention on clamped keys
    threshold: t, a number or a tensor that broadcasts to the leading axes of k, one for each head
    dual_sign: of the dual variable in q: -1 as published, +1 as ADMM has it

    Queries, keys and values are of one width, for l is compared with k. Gradients flow through every iteration, and
    into the threshold. Where the compiled kernel serves `symmetric_attention`, it runs all iterations in one call and
    keeps l alone for the gradient.
    """
    scale = check_pursuit(k, v, iterations, dual_sign, mask, scale)
    t = threshold_by_head(k, threshold)
    seen, pull = None, 1.0 - dual_sign
    fast = kernel_is_worth_it(k, scale, iterations=int(iterations))
    if fast and mask is not None:
        seen = padding(mask, k)
        fast = seen is not None
    wide = torch.promote_types(k.dtype, torch.float32)
    if not fast:
        with as_given(k):
            attending = Attending(mask=mask, scale=scale)
            out = pursue_by_parts(
                k.to(wide), v.to(wide), t[..., None, None], _STEPS[dual_sign], attending, iterations=int(iterations)
            )
            return out.to(v.dtype)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, t))
    keys, values = four_axes(k.to(wide)), four_axes(v.to(wide))
    found: Tensor
    found, *_ = pursuit(keys, values, t.to(wide).reshape(keys.shape[:2]), seen, int(iterations), pull, scale, keep)
    return found.to(v.dtype).reshape(v.shape)


def check_pursuit(
    k: Tensor, v: Tensor, iterations: int, dual_sign: int, mask: Tensor | None, scale: float | None
) -> float:
    check_attention_operands(k, k, v, mask=mask)
    if k.shape[-1] != v.shape[-1]:
        raise ShapeError(f"expected keys and values of one width; got k {tuple(k.shape)}, v {tuple(v.shape)}")
    if iterations < 1 or iterations != int(iterations):
        raise InputError(f"expected a whole number of iterations, one or more; got {iterations}")
    if dual_sign not in (-1, 1):
        raise InputError(f"expected a dual sign of -1, as published, or 1, as ADMM has it; got {dual_sign}")
    return checked_scale(k, scale)


def threshold_by_head(k: Tensor, threshold: Tensor | float) -> Tensor:
    """One for each leading index of k, in single precision or better."""
    wide = torch.promote_types(k.dtype, torch.float32)
    if not isinstance(threshold, Tensor):
        if not threshold >= 0:
            raise InputError(f"expected a threshold of zero or more; got {threshold}")
        return torch.full(k.shape[:-2], threshold, dtype=wide, device=k.device)
    if threshold.device != k.device or not threshold.is_floating_point():
        raise InputError(
            f"expected floating thresholds on the device of k, {k.device}; got {threshold.dtype} on {threshold.device}"
        )
    if not broadcasts(tuple(threshold.shape), tuple(k.shape[:-2])):
        raise ShapeError(
            f"expected thresholds that broadcast to {tuple(k.shape[:-2])}, the leading axes of k; "
            f"got threshold {tuple(threshold.shape)}, k {tuple(k.shape)}"
        )
    return threshold.to(wide).expand(k.shape[:-2])
