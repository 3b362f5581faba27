"""What a layer's values were made from: the linear map whose output they are, found by numbers and not by names.

While sockets are open, calls of torch.nn.functional.linear and torch.addmm are noted: torch's linear layers end in the
one, transformers' Conv1D in the other, and layers that project without a module of their own are caught too. No module
is touched, so torch's fused paths stay as they are. When attention is called, its values are looked for among the
columns of the last outputs: a projection to v alone, a fused one in any order of q, k, v, heads and features, or heads
that several queries share.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.axes import Float
from clearhead.heads import Heads, ValueMap
from clearhead.numerics.precision import machine_epsilon, tolerance

__all__ = ["ValueTrace"]

NOTED = 8
"""Calls kept at a time. Queries, keys or gates may be projected after the values; what lies further back is let go."""
TOKENS = 4
"""Tokens of each kind, longest values and evenly spread, on which columns are first compared."""
COMPARED = 2**22
"""Numbers compared at a time in the search for columns."""


class ValueTrace:
    """The last linear calls of a forward pass, and where the values of each layer were found among them."""

    def __init__(self) -> None:
        self._calls: deque[_LinearCall] = deque(maxlen=NOTED)
        self._columns: dict[str, _Columns] = {}

    @contextmanager
    def watched(self, running: Callable[[], bool]) -> Iterator[None]:
        """Note linear calls while `running()`; torch has its own functions back afterwards."""
        linear, addmm = torch.nn.functional.linear, torch.addmm

        def noted_linear(*args: Any, **kwargs: Any) -> Tensor:
            out = linear(*args, **kwargs)
            if running() and not torch.compiler.is_compiling():
                self._note(out, *_linear_arguments(*args, **kwargs))
            return out

        def noted_addmm(*args: Any, **kwargs: Any) -> Tensor:
            out = addmm(*args, **kwargs)
            if len(args) == 3 and not kwargs and running() and not torch.compiler.is_compiling():
                bias, x, weight = args
                self._note(out, x, weight.mT, bias)
            return out

        torch.nn.functional.linear, torch.addmm = noted_linear, noted_addmm
        try:
            yield
        finally:
            torch.nn.functional.linear, torch.addmm = linear, addmm
            self.forget()

    def _note(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        versions = _versions(x, weight, bias, out)
        self._calls.append(_LinearCall(x=x, weight=weight, bias=bias, out=out, versions=versions))

    def forget(self) -> None:
        """Let go of every call noted."""
        self._calls.clear()

    @torch.no_grad()
    def origin(self, heads: Heads) -> ValueMap | None:
        """The linear map whose output the values are, None if there is none; the calls noted are forgotten.

        Every value must equal an entry of the map's output exactly. Where nobody has written into its tensors since,
        that makes it the map, and multiplying a few tokens out is enough; otherwise all are.
        """
        calls, v = list(reversed(self._calls)), heads.v
        self.forget()
        if v.numel() == 0 or not _is_plain(v):
            return None
        known = self._columns.get(heads.name)
        if known is not None:
            for call in calls:
                found = known.value_map(call, v)
                if found is not None and (call.unwritten() or _holds(found, v)):
                    return found
        tokens = _sample(v)
        for call in calls:
            columns = _find(call, v, tokens)
            found = None if columns is None else columns.value_map(call, v)
            if columns is not None and found is not None and _holds(found, v, tokens if call.unwritten() else None):
                self._columns[heads.name] = columns
                return found
        return None


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of torch's function in their order, whatever names they were given by."""
    return input, weight, bias


def _versions(*tensors: Tensor | None) -> tuple[int, ...] | None:
    """How often each was written to in place; None in inference mode, where torch does not count."""
    try:
        return tuple([x._version for x in tensors if x is not None])
    except RuntimeError:
        return None


def _is_plain(x: Tensor) -> bool:
    """Whether its numbers can be compared: those of subclasses (quantised, sharded) and sparse tensors may not."""
    strided = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
    return strided and x.is_floating_point() and not (x.is_nested or x.is_meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinearCall:
    """out = x weight^T + bias, as it was called."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    out: Tensor
    versions: tuple[int, ...] | None

    def unwritten(self) -> bool:
        """Whether the tensors are certainly those of the call still."""
        return self.versions is not None and self.versions == _versions(self.x, self.weight, self.bias, self.out)

    def fits(self, v: Tensor) -> bool:
        """Whether it has one output for every token of the values, and numbers that can be compared with them."""
        if self.out.dtype != v.dtype or self.out.numel() != v.shape[0] * v.shape[2] * self.out.shape[-1]:
            return False
        given = [part for part in (self.x, self.weight, self.bias, self.out) if part is not None]
        plain = all(_is_plain(part) and part.device == v.device for part in given)
        return plain and self.weight.ndim == 2 and (self.bias is None or self.bias.ndim == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Which columns of a linear map's output are a layer's values: one for each head and feature."""

    index: Tensor
    """(h, e), whole numbers."""
    step: tuple[int, int, int] | None
    """First column, step from head to head and from feature to feature, where the columns are that regular."""
    width: int
    tokens_first: bool
    """Whether the output has its axes as (m, b)."""

    def value_map(self, call: _LinearCall, v: Float[Tensor, "b h m e"]) -> ValueMap | None:
        """The map restricted to them, if they are the values, to the bit, on every token."""
        if call.out.shape[-1] != self.width or self.index.shape != v.shape[1::2] or not call.fits(v):
            return None
        taken = self.taken(_by_token(call.out, v, self.tokens_first)).movedim(2, 1)
        aliased = (taken.data_ptr(), taken.shape, taken.stride()) == (v.data_ptr(), v.shape, v.stride())
        if not aliased and not torch.equal(taken, v):
            return None
        return ValueMap(
            x=_by_token(call.x, v, self.tokens_first),
            weight=self.taken(call.weight.mT).movedim(0, 1),
            bias=None if call.bias is None else self.taken(call.bias),
        )

    def taken(self, x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead h e"]:
        """These columns of x; a view where they are regular, as copying a model's weights at every call would cost."""
        if self.step is None:
            return x[..., self.index]
        first, head, feature = (x.stride(-1) * step for step in self.step)
        strides = (*x.stride()[:-1], head, feature)
        return x.as_strided((*x.shape[:-1], *self.index.shape), strides, x.storage_offset() + first)


def _by_token(x: Tensor, v: Tensor, tokens_first: bool) -> Tensor:
    """(b, m, ...) in the order of the values."""
    b, m = v.shape[0], v.shape[2]
    return x.reshape(m, b, -1).transpose(0, 1) if tokens_first else x.reshape(b, m, -1)


def _sample(v: Float[Tensor, "b h m e"]) -> tuple[Tensor, Tensor]:
    """Tokens to compare on, as places in b and in m: those of the longest values, which are not padding, and others."""
    m, count = v.shape[2], v.shape[0] * v.shape[2]
    longest = v.abs().sum(dim=(1, 3)).flatten().topk(min(TOKENS, count)).indices
    spread = torch.linspace(0, count - 1, min(TOKENS, count), device=v.device).long()
    tokens = torch.cat([longest, spread])
    return tokens // m, tokens % m


def _find(call: _LinearCall, v: Float[Tensor, "b h m e"], tokens: tuple[Tensor, Tensor]) -> _Columns | None:
    """Columns that equal the values on the tokens sampled: as regular as the first of them are, or else any."""
    if not call.fits(v):
        return None
    inputs, places = tokens
    wanted = v[inputs, :, places]
    for tokens_first in (False, True):
        given = _by_token(call.out, v, tokens_first)[inputs, places]
        index = _equal_columns(given, wanted[:, :2, :2])
        if index is None:
            continue
        guess = _continued(index, *wanted.shape[1:])
        fits = int(guess.amin()) >= 0 and int(guess.amax()) < given.shape[-1] and torch.equal(given[:, guess], wanted)
        index = guess if fits else _equal_columns(given, wanted)
        if index is not None:
            return _Columns(index=index, step=_step(index), width=given.shape[-1], tokens_first=tokens_first)
    return None


def _equal_columns(given: Float[Tensor, "tokens width"], wanted: Float[Tensor, "tokens h e"]) -> Tensor | None:
    """For each head and feature, (h, e), a column of `given` that equals it; None if one has none."""
    found = []
    for part in torch.split(wanted.flatten(1), max(1, COMPARED // given.numel()), dim=1):
        equal = (given[:, None, :] == part[:, :, None]).all(dim=0)
        if not bool(equal.any(dim=1).all()):
            return None
        found.append(equal.to(torch.uint8).argmax(dim=1))
    return torch.cat(found).reshape(wanted.shape[1:])


def _continued(index: Tensor, h: int, e: int) -> Tensor:
    """The columns of h heads and e features, with the steps that the first two of each have."""
    head = index[1, 0] - index[0, 0] if h > 1 else 0
    feature = index[0, 1] - index[0, 0] if e > 1 else 0
    heads, features = (torch.arange(size, device=index.device) for size in (h, e))
    return index[0, 0] + head * heads[:, None] + feature * features


def _step(index: Tensor) -> tuple[int, int, int] | None:
    """First column and steps. None where they are irregular, or backwards, which torch has no views of."""
    h, e = index.shape
    first = int(index[0, 0])
    head, feature = int(index[min(1, h - 1), 0]) - first, int(index[0, min(1, e - 1)]) - first
    regular = head >= 0 and feature >= 0 and torch.equal(index, _continued(index, h, e))
    return (first, head, feature) if regular else None


def _holds(found: ValueMap, v: Float[Tensor, "b h m e"], tokens: tuple[Tensor, Tensor] | None = None) -> bool:
    """Whether x W + b is v to rounding, entry by entry, on the tokens given or on all.

    Rounding of a sum of products is measured by the root of the sum of their squares, and by the sum itself. The sum is
    taken in single precision at least, so a shorter dtype adds the roundings of its own numbers and not their walk.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):
        x, expected = found.x, v.movedim(1, 2).flatten(2)
        if tokens is not None:
            x, expected = x[tokens], expected[tokens]
        x, expected = x.to(dtype), expected.to(dtype)
        weight = found.weight.to(dtype).movedim(0, 1).flatten(1)
        bias = torch.zeros((), dtype=dtype, device=v.device) if found.bias is None else found.bias.to(dtype).flatten()
        size = (x.square() @ weight.square() + bias.square()).sqrt() + expected.abs()
        allowed = 8 * machine_epsilon(v.dtype) + tolerance(dtype, terms=x.shape[-1])
        return bool(((x @ weight + bias - expected).abs() <= allowed * size).all())
