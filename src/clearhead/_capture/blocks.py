"""One attention call and the sum that closes its block."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from clearhead._capture.dataflow import storage_of
from clearhead._capture.output_maps import OutputMap
from clearhead.heads import Heads, LayerNorm, LinearMap, ResidualStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The numbers of inputs and tokens of a call, and whether its model has tokens first."""

    inputs: int
    tokens: int
    windows: int
    tokens_first: bool

    @classmethod
    def of(cls, heads: Heads) -> "Axes":
        """Return the axes of a call. The projected tensor is contiguous by token where a model has tokens first."""
        b, _, n, _ = heads.q.shape
        linear = heads.queries_from
        step = heads.q.stride()[::2] if linear is None else linear.x.stride()
        return cls(
            inputs=b // heads.windows,
            tokens=n,
            windows=heads.windows,
            tokens_first=b > 1 and n > 1 and step[0] < step[1],
        )

    def by_input(self, x: Tensor) -> Tensor | None:
        """Return the tensor as (inputs, tokens, width); None if its tokens differ, or it may have channels first.

        The tensor may have tokens first, inputs and tokens in one axis, or the rows and columns of an image. Windows
        may have been padded, so with several windows fewer tokens are accepted.
        """
        i, t = self.inputs, self.tokens
        if x.ndim == 4:
            if x.shape[0] != i or x.shape[2] * x.shape[3] == t * self.windows:
                return None
            x = x.flatten(1, 2)
        if self.windows > 1:
            return x if x.ndim == 3 and x.shape[0] == i and x.shape[1] <= t * self.windows else None
        if x.ndim == 2 and x.shape[0] == i * t:
            x = x.reshape(*((t, i) if self.tokens_first else (i, t)), x.shape[1])
        if x.ndim != 3 or x.shape[:2] not in ((i, t), (t, i)):
            return None
        swapped = self.tokens_first if i == t else x.shape[:2] == (t, i)
        return x.transpose(0, 1) if swapped else x


@dataclass(slots=True, kw_only=True)
class Block:
    """The sums around one or more attention calls whose outputs were added to the tokens together.

    node, before_node: nodes of the first sum, and of the tokens that the attention output was added to
    between_node: node of the tokens that the output of the next part (the MLP) was added to; None before that sum
    sums: nodes of the sums after the first
    norm: operations from the first sum to `between_node`, if these are only a norm
    layer_norms: layer norms of the first sum, by the node of their output
    layer_norm: the layer norm whose output is the tokens between, if any
    norm_from: number of operations before the last sum after the first
    norm_again: whether the norm ran again after the last sum
    tensors: candidates for the residual stream, by their role in the rule
    """

    node: int
    before_node: int
    tensors: dict[str, Tensor]
    between_node: int | None = None
    sums: list[int] = field(default_factory=list)
    norm: list[str] = field(default_factory=list)
    layer_norms: dict[int, LayerNorm] = field(default_factory=dict)
    layer_norm: LayerNorm | None = None
    norm_from: int = 0
    norm_again: bool = False
    parallel: bool = False
    settled: bool = False

    def settle(self, *, between: str, between_node: int | None, after: str | None) -> None:
        """Choose the tensors of the residual stream and drop the others."""
        chosen = {
            name: self.tensors[role] for name, role in (("before", "before"), ("total", "total"), ("between", between))
        }
        if between_node is not None:
            self.layer_norm = self.layer_norms.get(between_node)
        if after is not None:
            chosen["after"] = self.tensors[after]
        self.tensors, self.settled = chosen, True

    def unshare(self, storage: int) -> None:
        """Copy the tensors in a storage that is about to be overwritten."""
        self.tensors = {name: _unshared(x, storage) for name, x in self.tensors.items()}


@dataclass(slots=True, kw_only=True)
class BlockCall:
    """One attention call, while its residual stream is not yet known.

    node: node of its output
    operands: nodes of its queries and keys
    sides: nodes of what was combined with its output besides the tokens
    heads: the call, held until its residual stream is known
    lost: whether the call has no residual stream
    output_map: tensors that depend on its output linearly
    output_weight: weight of each head's output in the sum
    """

    node: int
    operands: tuple[int, int]
    axes: Axes
    output_map: OutputMap
    sides: list[int] = field(default_factory=list)
    heads: Heads | None = None
    block: Block | None = None
    lost: bool = False
    output_weight: Tensor | None = None

    @property
    def settled(self) -> bool:
        """True if nothing more can become known."""
        return self.lost if self.block is None else self.block.settled

    @property
    def block_fields(self) -> dict[str, Any]:
        """The fields of `Heads` on the block around the call."""
        stream = self.residual_stream
        has_weight = stream is not None and self.axes.windows == 1
        return {"residual_stream": stream, "output_weight": self.output_weight if has_weight else None}

    @property
    def residual_stream(self) -> ResidualStream | None:
        """The tokens around the block, or None."""
        if self.lost or self.block is None or self.block.parallel:
            return None
        tensors = {name: self.axes.by_input(x) for name, x in self.block.tensors.items()}
        before, total, between, after = (tensors.get(name) for name in ("before", "total", "between", "after"))
        if before is None or total is None or between is None or not before.shape == total.shape == between.shape:
            return None
        return ResidualStream(
            before=before,
            total=total,
            between=between,
            after=after if after is not None and after.shape == before.shape else None,
            norm=self.block.layer_norm,
        )

    def unshare(self, storage: int) -> None:
        """Copy the tensors in a storage that is about to be overwritten."""
        if self.block is not None:
            self.block.unshare(storage)
        if self.heads is None:
            return
        fields = {name: getattr(self.heads, name) for name in _TENSORS}
        copies: dict[str, Any] = {name: _unshared(value, storage) for name, value in fields.items()}
        if any(copies[name] is not value for name, value in fields.items()):
            self.heads = dataclasses.replace(self.heads, **copies)


_TENSORS = ("q", "k", "v", "out", "mask", "bias", "sinks", "queries_from", "keys_from", "values_from")


def _unshared(x: Any, storage: int) -> Any:
    """Return a tensor or a map whose parts in the storage are copied; the argument itself if no part is there."""
    if isinstance(x, LinearMap):
        copies = [_unshared(tensor, storage) for tensor in (x.x, x.weight, x.bias)]
        unchanged = copies[0] is x.x and copies[1] is x.weight and copies[2] is x.bias
        return x if unchanged else LinearMap(x=copies[0], weight=copies[1], bias=copies[2])
    return x.clone() if isinstance(x, Tensor) and storage_of(x) == storage else x
