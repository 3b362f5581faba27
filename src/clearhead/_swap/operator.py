"""An operator applied to an attention call, or the reason why it cannot be.

A step with a cache need not compute the rows of earlier tokens again: the layer that computed them keeps them. A row
depends on the keys and values up to its token and on which of them are hidden. A cache of keys and values may be
reordered, cropped or replaced between two steps, and a static one is overwritten in place. So the rows are stored with
copies of all that they depend on, and used only where the step's own tensors are equal to the copies.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from clearhead.errors import InputError
from clearhead.interfaces import Call, Original
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.operators.requirements import CHILD_NAME, Requirements
from clearhead.shapes import Bool, Float, ShapeError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    k: Tensor
    v: Tensor
    keys: Tensor
    scale: float | None
    rows: Tensor

    def equal_length(self, k: Tensor, v: Tensor, keys: Tensor, scale: float | None) -> int:
        """Return the number of leading tokens whose rows hold for k, v and the visible keys: all that fit, or 0."""
        length = min(self.k.shape[-2], k.shape[-2])
        pairs = [(self.k[..., :length, :], k[..., :length, :]), (self.v[..., :length, :], v[..., :length, :])]
        if scale != self.scale or any((a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) for a, b in pairs):
            return 0
        same_keys = (self.keys[..., :length] == keys[..., :length]).all()
        return length if bool(same_keys) and all(torch.equal(a, b) for a, b in pairs) else 0


class PastRows:
    """The rows of the tokens in the last step with a cache, of one layer. Copies and files of a model hold none.

    There are none for a step with gradients, which they would not carry, and in code that torch compiles.
    """

    def __init__(self) -> None:
        self._stored: _Stored | None = None

    def extend(
        self,
        compute: Callable[[int], Tensor],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        keys: Bool[Tensor, "... #m"],
        *,
        scale: float | None,
    ) -> Float[Tensor, "*b m e"]:
        """Return the rows of all m tokens, of which only those without a stored row are computed.

        compute: returns the rows from a token on
        keys: True for the keys that are visible to later tokens
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return compute(0)
        stored = self._stored  # another thread may replace it meanwhile
        known = 0 if stored is None else stored.equal_length(k, v, keys, scale)
        known = max(0, min(known, k.shape[-2] - 1))  # there is always a row to compute
        rows = compute(known)
        if stored is not None and known:
            rows = torch.cat([stored.rows[..., :known, :], rows], dim=-2)
        self._stored = _Stored(k=k.clone(), v=v.clone(), keys=keys.clone(), scale=scale, rows=rows)
        return rows

    def clear(self) -> None:
        """Drop the rows."""
        self._stored = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and files hold."""
        return {"_stored": None}


_OPTIONS = {"bias": "a position bias", "softcap": "a soft cap on scores", "sinks": "attention sinks"}


class SwapWarning(UserWarning):
    """A side effect of a swap beyond the operator, for example dropout that is no longer applied."""


class OperatorHandler:
    """A handler that returns an operator's output in one layer. It is part of the model.

    operator: None if it is a child of the module, with parameters
    calls: number of calls so far; calls in code compiled by torch are not counted
    reached: whether there was a call, in compiled code too
    past: rows of earlier tokens, between the steps of a generation with a cache
    """

    replaces = True
    permanent = True

    def __init__(
        self, operator: Callable[..., Tensor] | None, module: nn.Module, *, name: str, needs: Requirements
    ) -> None:
        self.operator, self.module, self.name, self.needs = operator, module, name, needs
        self.calls = 0
        self.reached = False
        self.past = PastRows()

    def __call__(self, call: Call, original: Original) -> Tensor:
        self.reached = True
        if not torch.compiler.is_compiling():
            self.calls += 1
        operator: Any = self.module._modules[CHILD_NAME] if self.operator is None else self.operator
        return apply_operator(operator, self.needs, call, self.past)


def apply_operator(
    operator: Callable[..., Tensor], needs: Requirements, call: Call, past: PastRows | None = None
) -> Tensor:
    """Return the operator's output for a call, (..., n, e), with zeros for queries without a visible key.

    If the caller wants attention weights, they are added to `call.weights`: NaN for an operator that has none, because
    None would have no place in the list of a model that collects them. The output is the same to the bit.

    past: rows of earlier steps with a cache, which are used where they hold, and replaced

    Raise InputError if the layer has a bias, a soft cap or sinks that the operator does not take, or if the operator
    attends within one sequence and the layer does not.
    """
    if call.folded is not None and call.q.ndim > 2:
        return apply_operator(operator, needs, _unfolded(call, call.folded), past).flatten(-4, -3)
    if call.windows_last:
        return _apply(operator, needs, _windows_first(call), past).transpose(1, 2)
    return _apply(operator, needs, call, past)


def _apply(operator: Callable[..., Tensor], needs: Requirements, call: Call, past: PastRows | None) -> Tensor:
    for option, words in _OPTIONS.items():
        if getattr(call, option) is not None and option not in needs.takes:
            raise InputError(f"{call.name} has {words}, which {needs.name} does not take: leave it out of layers=")
    if call.dropout and "dropout" not in needs.takes and not torch.compiler.is_compiling():
        warnings.warn(
            f"{call.name} drops {call.dropout:.0%} of its weights in training; {needs.name} has no dropout, so none "
            "are dropped",
            SwapWarning,
            stacklevel=2,
        )
    if call.weights is not None and not hasattr(operator, "weights_and_values"):
        call.weights.append(_no_weights(call, needs))
        call = replace(call, weights=None)
    if not needs.square:
        return _run(operator, needs, call)
    n, m = call.q.shape[-2], call.k.shape[-2]
    if call.cross or (n != m and not call.causal) or n > m:
        raise InputError(
            f"{call.name}: {needs.name} attends within one sequence, and here {n} queries attend to {m} keys of "
            "another (cross-attention, or keys made fewer): leave it out of layers="
        )
    return _run(operator, needs, call) if n == m else _run_with_cache(operator, needs, call, past or PastRows())


def _unfolded(call: Call, heads: int) -> Call:
    """Return the call with an axis for its heads, so that an operator does not take the batch for them."""

    def unfold(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-3], x.shape[-3] // heads, heads, *x.shape[-2:])

    def unfold_mask(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim < 3:
            return x
        return x.unsqueeze(-3) if x.shape[-3] == 1 else unfold(x)

    q, k, v = unfold(call.q), unfold(call.k), unfold(call.v)
    return replace(call, q=q, k=k, v=v, mask=unfold_mask(call.mask), bias=unfold_mask(call.bias), folded=None)


def _windows_first(call: Call) -> Call:
    """Return the call with its heads before n, where operators look for them."""

    def swap_axes(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim < 3:
            return x
        return x.reshape((1,) * (5 - x.ndim) + x.shape).transpose(1, 2)

    q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
    mask, bias = swap_axes(call.mask), swap_axes(call.bias)
    return replace(call, q=q, k=k, v=v, mask=mask, bias=bias, windows_last=False)


def _no_weights(call: Call, needs: Requirements) -> Tensor:
    """Return NaN for each weight: one number in memory."""
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{call.name} was called for attention weights; {needs.name} has none, so they are NaN",
            SwapWarning,
            stacklevel=2,
        )
    return call.v.new_full((), torch.nan).expand(*call.q.shape[:-1], call.k.shape[-2])


def _run(operator: Any, needs: Requirements, call: Call, attend: Callable[..., Tensor] | None = None) -> Tensor:
    """Return the operator's output, by its function `attend` if it is not the operator itself."""
    options = {option: getattr(call, option) for option in _OPTIONS if getattr(call, option) is not None}
    if "dropout" in needs.takes and call.dropout:
        options["dropout"] = call.dropout
    mask, has_keys = call.mask, None
    if needs.plain and mask is not None:  # a plain function may give NaN for a query without a visible key
        has_keys = mask.any(dim=-1, keepdim=True)
        mask = mask | ~has_keys
    try:
        out = (attend or operator)(call.q, call.k, call.v, mask=mask, scale=call.scale, **options)
    except ShapeError as error:
        raise ShapeError(f"{call.name}: {needs.name} refuses the layer's tensors: {error}") from error
    expected = (*call.q.shape[:-1], call.v.shape[-1])
    if tuple(out.shape) != expected:
        raise ShapeError(f"{call.name}: expected {expected} from {needs.name}; got {tuple(out.shape)}")
    out = out.to(call.v.dtype)
    out = out if has_keys is None else torch.where(has_keys, out, 0)
    if call.weights is None:
        return out
    weights, out = run_within_memory(
        partial(_with_weights, partial(operator.weights_and_values, scale=call.scale, **options), call, out),
        task=f"{call.name}: attention weights of {needs.name}",
        remedy="do not ask for weights (output_attentions, need_weights), or pass fewer tokens at once",
        device=call.q.device,
        needed=bytes_of_matrices((*call.q.shape[:-1], call.k.shape[-2]), call.v.dtype),
    )
    call.weights.append(weights)
    return out


def _with_weights(compute: Callable[..., Any], call: Call, out: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights, and the output with gradients through them, as those of eager attention have."""
    weights, values = compute(call.q, call.k, call.v, mask=call.mask)
    weights = weights.to(call.v.dtype)
    if values is None or not torch.is_grad_enabled() or not out.requires_grad:
        return weights, out
    mean = weights @ values.to(weights.dtype)
    return weights, out.detach() + (mean - mean.detach())


def _run_with_cache(operator: Any, needs: Requirements, call: Call, past: PastRows) -> Tensor:
    """Return the output where a cache holds earlier keys: the last rows of the operator's output on all of them.

    The positions of the queries are read off the mask, in which each sees keys up to its own. An operator computes only
    these rows if it can (`attend_last`), if need be with rows of earlier tokens, which `past` holds (`has_key_rows`);
    otherwise it computes all. A cache does not hold earlier queries: they are zeros, which only an operator may get
    whose later rows do not depend on them.
    """
    n, m = call.q.shape[-2], call.k.shape[-2]
    if call.window is not None and m >= call.window:
        raise InputError(
            f"{call.name} has a sliding window of {call.window}, and its cache may have lost older keys, which "
            f"{needs.name} needs: generate with use_cache=False, or leave it out of layers="
        )
    first = m - 1 if call.mask is None else _first_position(call.mask, n)
    visible = torch.ones(1, m, dtype=torch.bool, device=call.q.device) if call.mask is None else call.mask
    stop = first + n
    keys = _visible_keys(visible, first, stop)
    if keys is None:
        raise InputError(
            f"{call.name}: the mask of {n} queries over {m} keys is not causal with hidden keys (a window, or several "
            f"sequences in one), and {needs.name} needs the masks of earlier queries: generate with use_cache=False"
        )
    if first and needs.needs_past_queries:
        raise InputError(
            f"{call.name}: {needs.name} needs the queries of earlier tokens, which a cache does not hold: "
            'generate with use_cache=False, or use keys as queries if the operator can (queries="keys")'
        )
    k, v = call.k[..., :stop, :], call.v[..., :stop, :]
    last = replace(call, k=k, v=v, mask=None if call.mask is None else call.mask[..., :stop])
    if call.weights is not None:
        last = replace(last, weights=[])
    out = _run_last(operator, needs, last, keys, first, past)
    if call.weights is not None and last.weights:
        call.weights.append(pad(last.weights[0], (0, m - stop)))  # a cache of fixed size has rows to spare
    return out


def _run_last(operator: Any, needs: Requirements, call: Call, keys: Tensor, first: int, past: PastRows) -> Tensor:
    """Return the last rows of the operator's output, from `first` on, and their weights."""
    k, v, stop = call.k, call.v, call.k.shape[-2]
    if needs.has_key_rows:
        rows_from = partial(_key_rows, operator, k, v, keys, call.scale)
        rows = past.extend(rows_from, k, v, keys, scale=call.scale)
        return _run(operator, needs, call, partial(operator.attend_with_rows, rows=rows))
    if hasattr(operator, "attend_last"):
        return _run(operator, needs, call, operator.attend_last)
    mask = torch.ones(stop, stop, dtype=torch.bool, device=k.device).tril() & keys
    q = torch.cat([call.q.new_zeros(*call.q.shape[:-2], first, call.q.shape[-1]), call.q], dim=-2)
    whole = replace(call, q=q if needs.uses_queries else k, mask=mask, weights=None if call.weights is None else [])
    out = _run(operator, needs, whole)
    if call.weights is not None and whole.weights:
        call.weights.append(whole.weights[0][..., first:, :])
    return out[..., first:, :]


def _key_rows(operator: Any, k: Tensor, v: Tensor, keys: Tensor, scale: float, start: int) -> Tensor:
    """Return the operator's rows of the tokens from `start` on, each of which sees the visible keys up to its own."""
    positions = torch.arange(k.shape[-2], device=k.device)
    rows: Tensor = operator.key_rows(k, v, mask=(positions <= positions[start:, None]) & keys, scale=scale)
    return rows


def _visible_keys(visible: Tensor, first: int, stop: int) -> Tensor | None:
    """Return the keys that the rows from `first` to `stop` see; None unless the rows are causal without other keys."""
    if stop > visible.shape[-1] or bool(visible[..., stop:].any()):
        return None
    keys, positions = visible[..., -1:, :stop], torch.arange(stop, device=visible.device)
    rows = (positions <= positions[first:, None]) & keys
    return keys if torch.equal(rows, visible[..., :stop]) else None


def _first_position(mask: Tensor, n: int) -> int:
    """Return the position of the first query: no query of the batch sees a later key, and one sees its own."""
    m = mask.shape[-1]
    last = torch.where(mask, torch.arange(m, device=mask.device), -1).amax(dim=-1)
    return max(0, int((last - torch.arange(n, device=mask.device)).amax()))
