"""One attention call and the sum that closes its block: the tokens that are carried past it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from clearhead.heads import Heads, LinearMap, Stream
from clearhead.tracing.dataflow import storage_of

__all__ = ["Axes", "Block", "BlockCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """How many inputs and tokens a call has, and whether its model has tokens before inputs where both are as many."""

    inputs: int
    tokens: int
    windows: int
    tokens_first: bool

    @classmethod
    def of(cls, heads: Heads) -> "Axes":
        """Read off the call. What is projected lies in memory token by token where a model has tokens first."""
        b, _, n, _ = heads.q.shape
        made = heads.queries_from
        step = heads.q.stride()[::2] if made is None else made.x.stride()
        return cls(
            inputs=b // heads.windows,
            tokens=n,
            windows=heads.windows,
            tokens_first=b > 1 and n > 1 and step[0] < step[1],
        )

    def laid_out(self, x: Tensor) -> Tensor | None:
        """The tensor as (inputs, tokens, width); None if it has other tokens than the call, or may have channels first.

        Given as that, with tokens first, with both in one axis, or with rows and columns of an image. Windows may have
        been padded, so where there are several fewer tokens will do.
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
    """What was found around one or more attention calls whose outputs were added to the tokens together.

    node, before_node: of the sum, and of the tokens it was added to
    between_node: of what the next part was added to, None before there is such a part
    sums: nodes of the sums after that
    norm: operations from the first sum to that, where they are no more than a norm
    norm_from, norm_again: how many operations had run at the last sum after the first; whether the norm came again
    kept: tensors that may become a part of the stream, by their part in the rule
    """

    node: int
    before_node: int
    kept: dict[str, Tensor]
    between_node: int | None = None
    sums: list[int] = field(default_factory=list)
    norm: list[str] = field(default_factory=list)
    norm_from: int = 0
    norm_again: bool = False
    parallel: bool = False
    settled: bool = False

    def settle(self, *, between: str, after: str | None) -> None:
        """Decide which of the tensors kept are the stream; the others are let go."""
        chosen = {"before": self.kept["before"], "between": self.kept[between]}
        if after is not None:
            chosen["after"] = self.kept[after]
        self.kept, self.settled = chosen, True

    def unshare(self, storage: int) -> None:
        """Copy what lies in a storage that is about to be written to."""
        self.kept = {part: _unshared(x, storage) for part, x in self.kept.items()}


@dataclass(slots=True, kw_only=True)
class BlockCall:
    """One attention call on its way to its stream.

    node: of its output; asked: of its queries and keys; sides: of what was added to its output besides the tokens
    heads: the call as its receiver wants it, kept until the stream is there
    lost: whether there is no stream to be found
    """

    node: int
    asked: tuple[int, int]
    axes: Axes
    sides: list[int] = field(default_factory=list)
    heads: Heads | None = None
    block: Block | None = None
    lost: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing more can become known."""
        return self.lost if self.block is None else self.block.settled

    @property
    def stream(self) -> Stream | None:
        """The tokens around the block, None if there is no such thing."""
        if self.lost or self.block is None or self.block.parallel:
            return None
        parts = {part: self.axes.laid_out(x) for part, x in self.block.kept.items()}
        before, between, after = parts["before"], parts["between"], parts.get("after")
        if before is None or between is None or before.shape != between.shape:
            return None
        return Stream(
            before=before, between=between, after=after if after is not None and after.shape == before.shape else None
        )

    def unshare(self, storage: int) -> None:
        """Copy what lies in a storage that is about to be written to."""
        if self.block is not None:
            self.block.unshare(storage)
        if self.heads is None:
            return
        held = {name: getattr(self.heads, name) for name in _HELD}
        apart: dict[str, Any] = {name: _unshared(part, storage) for name, part in held.items()}
        if any(apart[name] is not part for name, part in held.items()):
            self.heads = dataclasses.replace(self.heads, **apart)


_HELD = ("q", "k", "v", "out", "mask", "bias", "sinks", "queries_from", "keys_from", "values_from")


def _unshared(x: Any, storage: int) -> Any:
    """A tensor or a map, with copies of what lies in the storage; itself if nothing does."""
    if isinstance(x, LinearMap):
        parts = [_unshared(part, storage) for part in (x.x, x.weight, x.bias)]
        same = parts[0] is x.x and parts[1] is x.weight and parts[2] is x.bias
        return x if same else LinearMap(x=parts[0], weight=parts[1], bias=parts[2])
    return x.clone() if isinstance(x, Tensor) and storage_of(x) == storage else x
