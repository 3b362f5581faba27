"""Let an operator answer what a layer asks, or say in words why it cannot."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.placing import Traits
from clearhead.shapes import ShapeError
from clearhead.sockets.call import Call

__all__ = ["SwapWarning", "answer"]

_SAID = {"bias": "a position bias", "softcap": "a soft cap on scores", "sinks": "attention sinks"}


class SwapWarning(UserWarning):
    """Something that a swapped layer does otherwise than the layer it was, beside the operator itself."""


def answer(operator: Callable[..., Tensor], traits: Traits, call: Call, name: str) -> Tensor:
    """The operator's output for a call of the layer `name`, (..., n, e).

    Queries that may look nowhere get zeros. ValueError if the layer has a bias, a soft cap or sinks and the operator
    does not take them, or if the operator attends within one sequence and the layer does not.
    """
    if call.folded is not None and call.q.ndim > 2:
        return answer(operator, traits, _unfolded(call, call.folded), name).flatten(-4, -3)
    for part, said in _SAID.items():
        if getattr(call, part) is not None and part not in traits.takes:
            raise InputError(f"{name} has {said}, which {traits.name} does not take: leave it out of layers=")
    if call.dropout and "dropout" not in traits.takes and not torch.compiler.is_compiling():
        warnings.warn(
            f"{name} drops {call.dropout:.0%} of its weights in training; {traits.name} has no dropout, so none are",
            SwapWarning,
            stacklevel=2,
        )
    if not traits.square:
        return _run(operator, traits, call, name)
    n, m = call.q.shape[-2], call.k.shape[-2]
    if call.cross or (n != m and not call.causal) or n > m:
        raise InputError(
            f"{name}: {traits.name} attends within one sequence, and here {n} queries look at {m} keys of another "
            "(cross-attention, or keys made fewer): leave it out of layers="
        )
    return _run(operator, traits, call, name) if n == m else _within_cache(operator, traits, call, name)


def _unfolded(call: Call, heads: int) -> Call:
    """The call with an axis for its heads: an operator would take the batch for them."""

    def unfolded(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-3], x.shape[-3] // heads, heads, *x.shape[-2:])

    def beside(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim < 3:
            return x
        return x.unsqueeze(-3) if x.shape[-3] == 1 else unfolded(x)

    q, k, v = unfolded(call.q), unfolded(call.k), unfolded(call.v)
    return replace(call, q=q, k=k, v=v, mask=beside(call.mask), bias=beside(call.bias), folded=None)


def _run(operator: Callable[..., Tensor], traits: Traits, call: Call, name: str) -> Tensor:
    more = {part: getattr(call, part) for part in _SAID if getattr(call, part) is not None}
    if "dropout" in traits.takes and call.dropout:
        more["dropout"] = call.dropout
    mask, somewhere = call.mask, None
    if traits.plain and mask is not None:
        somewhere = mask.any(dim=-1, keepdim=True)
        mask = mask | ~somewhere
    try:
        out = operator(call.q, call.k, call.v, mask=mask, scale=call.scale, **more)
    except ShapeError as error:
        raise ShapeError(f"{name}: {traits.name} refuses the layer's tensors: {error}") from error
    expected = (*call.q.shape[:-1], call.v.shape[-1])
    if tuple(out.shape) != expected:
        raise ShapeError(f"{name}: expected {expected} from {traits.name}; got {tuple(out.shape)}")
    out = out.to(call.v.dtype)
    return out if somewhere is None else torch.where(somewhere, out, 0)


def _within_cache(operator: Callable[..., Tensor], traits: Traits, call: Call, name: str) -> Tensor:
    """Fewer queries than keys: the sequence is run again over all keys that the cache holds, and its last rows kept.

    Where the queries stand is read off the mask, in which each sees keys up to its own. Earlier tokens' queries are not
    in a cache: they are zeros, which only an operator may be given that does not look at them.
    """
    n, m = call.q.shape[-2], call.k.shape[-2]
    if call.window is not None and m >= call.window:
        raise InputError(
            f"{name} has a sliding window of {call.window}, and its cache may have lost older keys, which "
            f"{traits.name} needs: generate with use_cache=False, or leave it out of layers="
        )
    first = m - 1 if call.mask is None else _first_place(call.mask, n)
    seen = torch.ones(1, m, dtype=torch.bool, device=call.q.device) if call.mask is None else call.mask
    until = first + n
    whole = _whole_mask(seen, first, until)
    if whole is None:
        raise InputError(
            f"{name}: the mask of {n} queries over {m} keys is not causal with hidden keys (a window, or sequences "
            f"packed into one), and {traits.name} would need the masks of all before: generate with use_cache=False"
        )
    if first and traits.needs_past_queries:
        raise InputError(
            f"{name}: {traits.name} needs the queries of earlier tokens, which a cache does not keep: "
            'generate with use_cache=False, or let it ask by keys if it can (queries="keys")'
        )
    k, v = call.k[..., :until, :], call.v[..., :until, :]
    q = torch.cat([call.q.new_zeros(*call.q.shape[:-2], first, call.q.shape[-1]), call.q], dim=-2)
    asked = replace(call, q=q if traits.uses_queries else k, k=k, v=v, mask=whole)
    return _run(operator, traits, asked, name)[..., first:, :]


def _whole_mask(seen: Tensor, first: int, until: int) -> Tensor | None:
    """The causal mask of all tokens up to `until`, whose rows from `first` on are those seen; None if there is none."""
    if until > seen.shape[-1] or bool(seen[..., until:].any()):
        return None
    hidden = seen[..., -1:, :until]
    whole = torch.ones(until, until, dtype=torch.bool, device=seen.device).tril() & hidden
    return whole if torch.equal(whole[..., first:, :], seen[..., :until]) else None


def _first_place(mask: Tensor, n: int) -> int:
    """Where the first query stands among the keys: no query of the batch sees beyond its own place, and one sees it."""
    m = mask.shape[-1]
    last = torch.where(mask, torch.arange(m, device=mask.device), -1).amax(dim=-1)
    return max(0, int((last - torch.arange(n, device=mask.device)).amax()))
