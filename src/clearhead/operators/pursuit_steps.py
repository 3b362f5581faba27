r"""The iterations of principal attention pursuit with any of its options, over attention that stores no n x n matrix.

With c for what is left without its sparse part (`Pursuit.rest`), u for Y / mu and sigma for the dual sign, S is never
formed. Where the sparse part comes first (as published), an iteration is

.. math:: z = k - l + u, \quad c = \operatorname{rest}(z), \quad l' = A(c + l - (1 - \sigma) u), \quad u' = c + l - l'

and where the low-rank part does, from x = k,

.. math:: l' = A(x), \quad c = \operatorname{rest}(k - l' + u), \quad x' = l' - u + (1 + \sigma) c, \quad u' = c

What nothing reads after the last attention is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from clearhead.operators.pursuit_options import DropoutPlace, Order, Pursuit
from clearhead.operators.softmax import as_rows, fused_attention, softmax_attention
from clearhead.operators.symmetric import symmetric_attention

__all__ = ["Attending", "Note", "iterate", "pursue_by_parts"]

# So many numbers of the keys are worked on at a time on the CPU, that an iteration's tensors stay in its cache.
_CACHED = 1 << 17

Note = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Is told of an iteration: the keys of its attention, l, the sparse part, and u after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attending:
    """How the keys of an iteration attend: by themselves or by the queries given, with what mask, scale, dropout."""

    scale: float
    queries: Tensor | None = None
    mask: Tensor | None = None
    dropout: float = 0.0

    def of(self, keys: Tensor, values: Tensor, *, centred: bool, drops: bool) -> Tensor:
        """One attention over the keys."""
        if self.queries is None and not centred and not drops:
            return symmetric_attention(keys, values, mask=self.mask, scale=self.scale)
        asking = keys if self.queries is None else self.queries
        if centred:
            asking = asking - _mean(asking, self.mask)
        if not drops:
            return softmax_attention(asking, keys, values, mask=self.mask, scale=self.scale)
        if self.mask is None:
            return fused_attention(asking, keys, values, mask=None, dropout=self.dropout, scale=self.scale)
        shown = as_rows(self.mask)
        somewhere = shown.any(dim=-1, keepdim=True)
        out = fused_attention(asking, keys, values, mask=shown | ~somewhere, dropout=self.dropout, scale=self.scale)
        return torch.where(somewhere, out, 0)

    def part(self, start: int, end: int) -> "Attending":
        """That of some entries of the first of four axes."""
        mask = self.mask
        if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
            mask = mask[start:end]
        queries = None if self.queries is None else self.queries[start:end]
        return Attending(scale=self.scale, queries=queries, mask=mask, dropout=self.dropout)


def _mean(asking: Tensor, mask: Tensor | None) -> Tensor:
    """Of the queries of tokens that are there; the mask has one row for all of them."""
    if mask is None:
        return asking.mean(dim=-2, keepdim=True)
    there = as_rows(mask).expand(*mask.shape[:-2], 1, asking.shape[-2]).mT
    return torch.where(there, asking, 0).sum(dim=-2, keepdim=True) / there.sum(dim=-2, keepdim=True).clamp_min(1)


def iterate(
    k: Tensor,
    v: Tensor,
    bound: Tensor,
    pursuit: Pursuit,
    attending: Attending,
    *,
    iterations: int | None = None,
    note: Note | None = None,
) -> Tensor:
    """l after the last iteration. bound: (..., 1, 1) or (..., n, 1); iterations: others than the pursuit has"""
    iterations = pursuit.iterations if iterations is None else iterations
    low_rank = dual = torch.zeros(()).to(k)
    keys = k
    for i in range(iterations):
        last = i == iterations - 1
        drops = attending.dropout > 0 and (
            pursuit.dropout is DropoutPlace.ALL or (last and pursuit.dropout is DropoutPlace.LAST)
        )
        attend = partial(attending.of, values=v, centred=pursuit.centred, drops=drops)
        if pursuit.order is Order.SPARSE_FIRST:
            left = k if i == 0 else k - low_rank + dual
            rest = pursuit.rest(left, bound, last=last)
            keys = rest if i == 0 else rest + low_rank - (1 - pursuit.dual_sign) * dual
            new = attend(keys)
            if note is not None or not last:
                dual = rest + low_rank - new
            low_rank = new
        else:
            low_rank = attend(keys)
            if note is not None or not last:
                left = k - low_rank + dual
                rest = pursuit.rest(left, bound, last=last)
                attended, keys = keys, low_rank - dual + (1 + pursuit.dual_sign) * rest
                dual = rest
        if note is not None:
            note(keys if pursuit.order is Order.SPARSE_FIRST else attended, low_rank, left - rest, dual)
    return low_rank


def pursue_by_parts(
    k: Tensor, v: Tensor, bound: Tensor, pursuit: Pursuit, attending: Attending, *, iterations: int | None = None
) -> Tensor:
    """`iterate`, on the CPU a few entries of the batch at a time: their tensors then stay in its cache."""
    size = max(1, _CACHED // max(1, k[:1].numel()))
    whole = k.ndim != 4 or len(k) <= size or k.device.type != "cpu" or torch.compiler.is_compiling()
    if whole or attending.dropout > 0:
        return iterate(k, v, bound, pursuit, attending, iterations=iterations)
    parts = [(start, min(start + size, len(k))) for start in range(0, len(k), size)]
    return torch.cat(
        [
            iterate(
                k[start:end],
                v[start:end],
                bound[start:end],
                pursuit,
                attending.part(start, end),
                iterations=iterations,
            )
            for start, end in parts
        ]
    )
