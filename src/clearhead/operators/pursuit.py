r"""Principal attention pursuit (PAP): the iterations of RPC-Attention (Teo and Nguyen 2024, algorithm 1).

k, v, l are the rows of the source's K, V, L; u (`dual`) is Y / mu; `threshold` is lambda / mu, the only way in which mu
enters; sigma is the dual sign. With :math:`x - \operatorname{shrink}_t(x) = \operatorname{clamp}(x, \pm t)` the sparse
part S is never formed. With c for the residual minus its sparse part (`Pursuit.subtract_sparse`), an iteration in the
published order, sparse part first, is

.. math:: z = k - l + u, \quad c = \operatorname{clamp}(z), \quad l' = A(c + l - (1 - \sigma) u), \quad u' = c + l - l'

and with the low-rank part first, from x = k,

.. math:: l' = A(x), \quad c = \operatorname{clamp}(k - l' + u), \quad x' = l' - u + (1 + \sigma) c, \quad u' = c

Updates that nothing reads after the last attention are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.pursuit_kernel import pursuit as pursuit_in_kernel
from clearhead.operators.pursuit_options import DropoutIterations, DualSign, Order, Pursuit
from clearhead.operators.softmax import (
    add_causal_mask,
    as_rows,
    attend_with_keys,
    fused_attention,
    slow_softmax_attention,
    softmax_attention,
    split_causal,
)
from clearhead.operators.symmetric import (
    four_axes,
    key_mask_of,
    prefers_kernel,
    resolve_scale,
    symmetric_attention,
)
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.private_names import forward_mode_active, functorch_active
from clearhead.shapes import Bool, Float, ShapeError, broadcasts, check_attention_operands

# The number of entries of keys per chunk and thread on the CPU: the tensors of an iteration stay in its caches, and
# each operation is long compared with the time that threads wait for each other at its end.
_CHUNK = 1 << 18

_STEPS: dict[int, Pursuit] = {-1: Pursuit(dual_sign=-1), 1: Pursuit(dual_sign=1)}

Observer = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""A function called after each iteration with the keys of its attention, l, the sparse part, and u."""


def principal_attention_pursuit(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    iterations: int,
    threshold: Float[Tensor, "..."] | float,
    dual_sign: DualSign = -1,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*b n d"]:
    r"""Iterate symmetric attention on keys without their outlying entries, from l = dual = 0. Keys are the queries.

    .. math:: z = k - l + \text{dual}, \quad c = \operatorname{clamp}(z, \pm t), \quad
        q = l - (1 - \text{sign})\,\text{dual} + c, \quad
        l' = \operatorname{attention}(q, q, v), \quad \text{dual}' = c + l - l'

    iterations: one is exactly symmetric attention on clamped keys
    threshold: t, a number or a tensor that broadcasts to the leading axes of k, one for each head
    dual_sign: sign of the dual variable in q: -1 as published, +1 as in ADMM
    mask, is_causal, scale: as in `symmetric_attention`

    Keys and values have the same width, because l is subtracted from k. Gradients flow through every iteration and into
    the threshold. Where the compiled kernel supports `symmetric_attention`, it runs all iterations in one call and
    stores only l for the gradient.
    """
    scale = check_pursuit(k, v, iterations, dual_sign, mask, scale)
    bound = threshold_by_head(k, threshold)[..., None, None]
    mask, is_causal = split_causal(mask, k, is_causal=is_causal)
    step = AttentionStep(mask=mask, is_causal=is_causal, scale=scale)
    return pursue_published(k, v, bound, _STEPS[dual_sign], step, iterations=int(iterations))


def slow_principal_attention_pursuit(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    iterations: int,
    threshold: Float[Tensor, "..."] | float,
    dual_sign: DualSign = -1,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n d"]:
    """Compute `principal_attention_pursuit` line by line, with the sparse part and the dual update."""
    scale = check_pursuit(k, v, iterations, dual_sign, mask, scale)
    t = threshold_by_head(k, threshold)[..., None, None].to(k.dtype)
    low_rank = dual = torch.zeros_like(k)
    for _ in range(int(iterations)):
        residual = k - low_rank + dual
        sparse = residual.sign() * (residual.abs() - t).clamp_min(0)
        keys = k - sparse + dual_sign * dual
        low_rank = slow_softmax_attention(keys, keys, v, mask=mask, scale=scale)
        dual = dual + (k - low_rank - sparse)
    return low_rank


def pursue_published(
    k: Tensor, v: Tensor, bound: Tensor, pursuit: Pursuit, step: "AttentionStep", *, iterations: int
) -> Tensor:
    """Return l after steps that the compiled kernel implements, computed by it if it supports the sizes and the mask.

    bound: (..., 1, 1) or (..., n, 1)
    step: with keys as queries, and without dropout
    """
    key_mask = None
    fast = prefers_kernel(k, step.scale, iterations=iterations)
    if fast and step.mask is not None:
        key_mask = key_mask_of(step.mask, k)
        fast = key_mask is not None
    wide = torch.promote_types(k.dtype, torch.float32)
    if not fast:
        with no_autocast(k):
            out = iterate_in_chunks(k.to(wide), v.to(wide), bound, pursuit, step, iterations=iterations)
            return out.to(v.dtype)
    for_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, bound))
    keys, values = four_axes(k.to(wide)), four_axes(v.to(wide))
    thresholds = bound[..., 0].to(wide).expand(k.shape[:-1]).reshape(keys.shape[:3])
    settings = (iterations, 1.0 - pursuit.dual_sign, step.scale, step.is_causal, for_gradient)
    low_rank: Tensor
    low_rank, *_ = pursuit_in_kernel(keys, values, thresholds, key_mask, *settings)
    return low_rank.to(v.dtype).reshape(v.shape)


def check_pursuit(
    k: Tensor, v: Tensor, iterations: int, dual_sign: int, mask: Tensor | None, scale: float | None
) -> float:
    """Return the scale. Raise `ShapeError` or ValueError unless the arguments of a pursuit fit each other."""
    check_attention_operands(k, k, v, mask=mask)
    if k.shape[-1] != v.shape[-1]:
        raise ShapeError(f"expected keys and values of one width; got k {tuple(k.shape)}, v {tuple(v.shape)}")
    if iterations < 1 or iterations != int(iterations):
        raise InputError(f"expected a whole number of iterations, one or more; got {iterations}")
    if dual_sign not in (-1, 1):
        raise InputError(f"expected a dual sign of -1, as published, or 1, as in ADMM; got {dual_sign}")
    return resolve_scale(k, scale)


def threshold_by_head(k: Tensor, threshold: Tensor | float) -> Tensor:
    """Return one threshold for each leading index of k, in single precision or better."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """The attention A of an iteration: its queries (the keys if None), mask, scale and dropout."""

    scale: float
    queries: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False
    dropout: float = 0.0

    def attend(self, keys: Tensor, values: Tensor, *, centred: bool, drops: bool) -> Tensor:
        """Return attention over the keys; `centred` queries have their mean subtracted, `drops` applies dropout."""
        if self.queries is None and not centred and not drops:
            return symmetric_attention(keys, values, mask=self.mask, is_causal=self.is_causal, scale=self.scale)
        q = self.queries_for(keys, centred=centred)
        if not drops:
            return softmax_attention(q, keys, values, mask=self.mask, is_causal=self.is_causal, scale=self.scale)
        attend = partial(fused_attention, q, keys, values, dropout=self.dropout, scale=self.scale)
        mask = add_causal_mask(self.mask, keys) if self.is_causal else self.mask
        return attend(mask=None) if mask is None else attend_with_keys(attend, mask)

    def queries_for(self, keys: Tensor, *, centred: bool) -> Tensor:
        """Return the queries that attend to these keys."""
        q = keys if self.queries is None else self.queries
        return q - _mean(q, self.mask) if centred else q

    def slice(self, start: int, end: int) -> "AttentionStep":
        """Return the step of entries start to end of the first of four axes."""
        mask = self.mask
        if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
            mask = mask[start:end]
        queries = None if self.queries is None else self.queries[start:end]
        return replace(self, queries=queries, mask=mask)


def _mean(q: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of the visible tokens' queries; the mask is the same for all queries."""
    if mask is None:
        return q.mean(dim=-2, keepdim=True)
    visible = as_rows(mask).expand(*mask.shape[:-2], 1, q.shape[-2]).mT
    return torch.where(visible, q, 0).sum(dim=-2, keepdim=True) / visible.sum(dim=-2, keepdim=True).clamp_min(1)


def iterate(
    k: Tensor,
    v: Tensor,
    bound: Tensor,
    pursuit: Pursuit,
    step: AttentionStep,
    *,
    iterations: int | None = None,
    observe: Observer | None = None,
    overwrite: bool = False,
) -> Tensor:
    """Return l after the last iteration.

    bound: (..., 1, 1) or (..., n, 1)
    iterations: those of the pursuit if None
    overwrite: True to overwrite intermediate results, if no gradient and no observer needs them
    """
    iterations = pursuit.iterations if iterations is None else iterations
    add, sub = (Tensor.add_, Tensor.sub_) if overwrite else (torch.add, torch.sub)
    low_rank = dual = torch.zeros(()).to(k)
    keys = k
    for i in range(iterations):
        last = i == iterations - 1
        drops = step.dropout > 0 and (
            pursuit.dropout is DropoutIterations.ALL or (last and pursuit.dropout is DropoutIterations.LAST)
        )
        attend = partial(step.attend, values=v, centred=pursuit.centred, drops=drops)
        if pursuit.order is Order.SPARSE_FIRST:
            residual = k if i == 0 else add(k - low_rank, dual)
            clamped = pursuit.subtract_sparse(residual, bound, last=last)
            reach = clamped if i == 0 else add(clamped, low_rank)
            target = dual if overwrite and i > 0 else None
            keys = reach if i == 0 else torch.sub(reach, dual, alpha=1 - pursuit.dual_sign, out=target)
            attended_keys, low_rank = keys, attend(keys)
            if observe is not None or not last:
                dual = sub(reach, low_rank)
        else:
            attended_keys, low_rank = keys, attend(keys)
            if observe is not None or not last:
                residual = k - low_rank + dual
                clamped = pursuit.subtract_sparse(residual, bound, last=last)
                keys = low_rank - dual + (1 + pursuit.dual_sign) * clamped
                dual = clamped
        if observe is not None:
            observe(attended_keys, low_rank, residual - clamped, dual)
    return low_rank


def iterate_in_chunks(
    k: Tensor, v: Tensor, bound: Tensor, pursuit: Pursuit, step: AttentionStep, *, iterations: int | None = None
) -> Tensor:
    """Return `iterate`, computed on the CPU a few entries of the batch at a time, whose tensors stay in the cache."""
    whole = k.ndim != 4 or k.device.type != "cpu" or torch.compiler.is_compiling() or step.dropout > 0
    size = len(k) if whole else max(1, _CHUNK * torch.get_num_threads() // max(1, k[:1].numel()))
    recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or functorch_active() or forward_mode_active()
    run = partial(iterate, pursuit=pursuit, iterations=iterations, overwrite=not recorded)
    if len(k) <= size:
        return run(k, v, bound, step=step)
    outputs = []
    for start in range(0, len(k), size):
        rows = slice(start, min(start + size, len(k)))
        chunk = step.slice(rows.start, rows.stop)
        outputs.append(run(k[rows], v[rows], bound[rows], step=chunk))
    return torch.cat(outputs)
