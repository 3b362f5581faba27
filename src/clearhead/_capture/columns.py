"""The columns of a linear map's output that are a layer's queries, keys or values, and their common factor.

A `LinearCall` is one linear map as a model called it, and tells whether a tensor is its output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.heads import LinearMap
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.private_names import tensor_version
from clearhead.shapes import Float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCall:
    """out = x weight^T + bias, as it was called."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    out: Tensor
    versions: tuple[int, ...] | None

    @classmethod
    def record(cls, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> "LinearCall":
        """Return the call, with the number of writes to its tensors so far."""
        return cls(x=x, weight=weight, bias=bias, out=out, versions=_versions(x, weight, bias, out))

    def unwritten(self) -> bool:
        """Return whether the tensors are certainly unchanged since the call."""
        return self.versions is not None and self.versions == _versions(self.x, self.weight, self.bias, self.out)

    def fits(self, y: Float[Tensor, "b h t f"]) -> bool:
        """Return whether it has one output for every token of y, with numbers that can be compared."""
        if self.out.dtype != y.dtype or self.out.numel() != y.shape[0] * y.shape[2] * self.out.shape[-1]:
            return False
        tensors = [tensor for tensor in (self.x, self.weight, self.bias, self.out) if tensor is not None]
        comparable = all(is_plain(tensor) and tensor.device == y.device for tensor in tensors)
        return comparable and self.weight.ndim == 2 and (self.bias is None or self.bias.ndim == 1)


def _versions(*tensors: Tensor | None) -> tuple[int, ...] | None:
    """Return the number of in-place writes to each; None in inference mode, where torch does not count them."""
    try:
        return tuple([tensor_version(x) for x in tensors if x is not None])
    except RuntimeError:
        return None


def is_plain(x: Tensor) -> bool:
    """Return whether numbers can be compared; those of subclasses (quantised, sharded) and sparse tensors may not."""
    strided = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
    return strided and x.is_floating_point() and not (x.is_nested or x.is_meta)


def by_token(x: Tensor, y: Float[Tensor, "b h t f"], tokens_first: bool) -> Tensor:
    """Return x as (b, t, ...), in the order of y."""
    b, t = y.shape[0], y.shape[2]
    return x.reshape(t, b, -1).transpose(0, 1) if tokens_first else x.reshape(b, t, -1)


def holds(linear_map: LinearMap, y: Float[Tensor, "b h t f"], tokens: tuple[Tensor, Tensor] | None = None) -> bool:
    """Return whether x W + b equals y to rounding: in the first head on these tokens, or everywhere.

    The rounding of a sum of products is bounded by the root of the sum of their squares and by the sum itself. The sum
    is computed in single precision at least, so a shorter dtype adds the rounding of its numbers without accumulation.
    """
    dtype = torch.promote_types(y.dtype, torch.float32)
    with torch.autocast(y.device.type, enabled=False):
        heads = slice(None) if tokens is None else slice(1)
        x, expected = linear_map.x, y[:, heads].movedim(1, 2)
        if tokens is not None:
            x, expected = x[tokens], expected[tokens]
        x, expected = x.to(dtype), expected.to(dtype).flatten(-2)
        weight = linear_map.weight[heads].to(dtype).movedim(0, 1).flatten(1)
        bias = x.new_zeros(()) if linear_map.bias is None else linear_map.bias[heads].to(dtype).flatten()
        size = (x.square() @ weight.square() + bias.square()).sqrt() + expected.abs()
        allowed = 8 * machine_epsilon(y.dtype) + tolerance(dtype, terms=x.shape[-1])
        return bool(((x @ weight + bias - expected).abs() <= allowed * size).all())


TOKENS = 4
"""The number of tokens of each kind, longest and evenly spread, on which columns are first compared."""
COMPARED = 2**22
"""The number of entries compared at a time."""
ROUNDINGS = 2
"""The tolerance of a product with a constant, in spacings of the dtype: the model's rounding, ours, the constant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a linear map's output that are a layer's queries, keys or values y, one per head and feature."""

    index: Tensor
    """(h, f), integers."""
    step: tuple[int, int, int] | None
    """First column, step from head to head and from feature to feature; None if the columns are irregular."""
    width: int
    tokens_first: bool
    """Whether the output has the axes (t, b)."""
    factor: float
    """The constant that the model multiplied them by, 1 if it did not."""

    def linear_map(self, call: LinearCall, y: Float[Tensor, "b h t f"]) -> LinearMap | None:
        """Return the map of these columns if they equal y on every token: exactly, or to rounding with a factor."""
        if call.out.shape[-1] != self.width or self.index.shape != y.shape[1::2] or not call.fits(y):
            return None
        selected = self.select(by_token(call.out, y, self.tokens_first)).movedim(2, 1)
        if not self._equal(selected, y):
            return None
        weight = self.select(call.weight.mT).movedim(0, 1)
        bias = None if call.bias is None else self.select(call.bias)
        if self.factor != 1:
            weight, bias = weight * self.factor, None if bias is None else bias * self.factor
        return LinearMap(x=by_token(call.x, y, self.tokens_first), weight=weight, bias=bias)

    def _equal(self, selected: Tensor, y: Tensor) -> bool:
        if self.factor != 1:
            return torch.allclose(selected * self.factor, y, rtol=ROUNDINGS * machine_epsilon(y.dtype), atol=0.0)
        aliased = (selected.data_ptr(), selected.shape, selected.stride()) == (y.data_ptr(), y.shape, y.stride())
        return aliased or torch.equal(selected, y)

    def select(self, x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead h f"]:
        """Return these columns of x, a view if they are regular: copying a model's weights at every call is slow."""
        if self.step is None:
            return x[..., self.index]
        first, head, feature = (x.stride(-1) * step for step in self.step)
        strides = (*x.stride()[:-1], head, feature)
        return x.as_strided((*x.shape[:-1], *self.index.shape), strides, x.storage_offset() + first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The outputs of some calls for a few tokens, shared by all operands with these tokens, (b, t)."""

    tokens: tuple[Tensor, Tensor]
    """Indices in b and in t."""
    outputs: Float[Tensor, "tokens width"]
    """Concatenated."""
    calls: list[tuple[int, bool, int]]
    """For each call its index, whether its output has tokens first, and its width."""

    @classmethod
    def of(cls, calls: Sequence[LinearCall], y: Float[Tensor, "b h t f"]) -> "Sampled":
        """Return the outputs of the calls that fit y, for its longest tokens, which are not padding, and others.

        The length of a token is estimated from a few of its heads.
        """
        t, count = y.shape[2], y.shape[0] * y.shape[2]
        longest = y[:, :: max(1, y.shape[1] - 1)].abs().sum(dim=(1, 3)).flatten().topk(min(TOKENS, count)).indices
        spread = torch.linspace(0, count - 1, min(TOKENS, count), device=y.device).long()
        positions = torch.cat([longest, spread])
        tokens = (positions // t, positions % t)
        fitting = [(i, first) for i, call in enumerate(calls) if call.fits(y) for first in _orders(call.out, y)]
        outputs = [by_token(calls[i].out, y, first)[tokens] for i, first in fitting]
        return cls(
            tokens=tokens,
            outputs=torch.cat(outputs, dim=1) if outputs else y.new_empty(len(positions), 0),
            calls=[(i, first, output.shape[1]) for (i, first), output in zip(fitting, outputs, strict=True)],
        )

    def find(self, y: Float[Tensor, "b h t f"]) -> Iterator[tuple[int, Columns]]:
        """Yield indices of calls with columns that equal y on these tokens; then with columns times one constant."""
        inputs, positions = self.tokens
        target = y[inputs, :, positions]
        features = target.flatten(1)
        longest = features[:, features.abs().sum(dim=0).argmax()]
        widths = [width for _, _, width in self.calls]
        for exact in (True, False):
            alike = (self.outputs == longest[:, None]).all(dim=0) if exact else _multiples(self.outputs, longest)
            split = zip(self.calls, torch.split(self.outputs, widths, 1), torch.split(alike, widths), strict=True)
            for (index, tokens_first, width), output, fits in split:
                if not bool(fits.any()):
                    continue
                factor = 1.0 if exact else _ratio(output[:, fits.to(torch.uint8).argmax()], longest)
                columns = _index(output if exact else output * factor, target, exact=exact)
                if columns is not None:
                    step = _step(columns)
                    yield (
                        index,
                        Columns(index=columns, step=step, width=width, tokens_first=tokens_first, factor=factor),
                    )


def _multiples(columns: Float[Tensor, "tokens width"], y: Float[Tensor, "tokens"]) -> Tensor:
    """Return which columns are y times a constant, to rounding; none if y is zero, which is any column times zero."""
    columns, spacing, y = columns.cpu().double(), machine_epsilon(y.dtype), y.cpu().double()
    at = y.abs().argmax()
    return _alike(columns * (y[at] / columns[at]), y[:, None], spacing).all(dim=0) & (y[at] != 0)


def _ratio(column: Float[Tensor, "tokens"], y: Float[Tensor, "tokens"]) -> float:
    """Return the least-squares factor from the column to y."""
    column, y = column.cpu().double(), y.cpu().double()
    return float(column @ y / (column @ column))


def _orders(out: Tensor, y: Tensor) -> tuple[bool, ...]:
    """Return the possible values of `tokens_first`, as far as the shape tells."""
    b, t = y.shape[0], y.shape[2]
    if 1 in (b, t) or (b != t and out.shape[:-1] == (b, t)):
        return (False,)
    return (True,) if b != t and out.shape[:-1] == (t, b) else (False, True)


def _alike(a: Tensor, b: Tensor, spacing: float) -> Tensor:
    return (a - b).abs() <= ROUNDINGS * spacing * b.abs()


def _index(
    outputs: Float[Tensor, "tokens width"], target: Float[Tensor, "tokens h f"], *, exact: bool
) -> Tensor | None:
    """Return a column of `outputs` for each head and feature of `target`, (h, f); None if one is missing.

    The regular pattern of the first columns is tried first, then any columns.
    """
    index = _matching(outputs, target[:, :2, :2], exact=exact)
    if index is None:
        return None
    guess = _continued(index, *target.shape[1:])
    if (
        int(guess.amin()) >= 0
        and int(guess.amax()) < outputs.shape[-1]
        and _same(outputs[:, guess], target, exact).all()
    ):
        return guess
    return _matching(outputs, target, exact=exact)


def _same(a: Tensor, b: Tensor, exact: bool) -> Tensor:
    return a == b if exact else _alike(a, b, machine_epsilon(b.dtype))


def _matching(
    outputs: Float[Tensor, "tokens width"], target: Float[Tensor, "tokens h f"], *, exact: bool
) -> Tensor | None:
    columns = []
    for chunk in torch.split(target.flatten(1), max(1, COMPARED // outputs.numel()), dim=1):
        same = _same(outputs[:, None, :], chunk[:, :, None], exact).all(dim=0)
        if not bool(same.any(dim=1).all()):
            return None
        columns.append(same.to(torch.uint8).argmax(dim=1))
    return torch.cat(columns).reshape(target.shape[1:])


def _continued(index: Tensor, h: int, f: int) -> Tensor:
    """Return the columns of h heads and f features, with the steps of the first two of each."""
    head = index[1, 0] - index[0, 0] if h > 1 else 0
    feature = index[0, 1] - index[0, 0] if f > 1 else 0
    heads, features = (torch.arange(size, device=index.device) for size in (h, f))
    return index[0, 0] + head * heads[:, None] + feature * features


def _step(index: Tensor) -> tuple[int, int, int] | None:
    """Return first column and steps; None if they are irregular or decreasing, for which torch has no views."""
    h, f = index.shape
    first = int(index[0, 0])
    head, feature = int(index[min(1, h - 1), 0]) - first, int(index[0, min(1, f - 1)]) - first
    regular = head >= 0 and feature >= 0 and torch.equal(index, _continued(index, h, f))
    return (first, head, feature) if regular else None
