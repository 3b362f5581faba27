"""The residual stream around attention, found by watching what a model adds to what, whatever its architecture.

While the model's own forward runs, every operation is noted with what it read, so that of any two tensors it is known
whether one was computed from the other. A sum x + f(x) in which f passes through an attention call closes that call's
block: x is what the model carries past it. A later sum y + g(y), with y computed from the first sum and no attention in
g, is the part that follows, its MLP say. With one rule for all:

- `before` is x;
- `between` is y if y is the first sum itself (pre-norm), or if the operations that made y of the first sum are those
  that follow the second (post-norm: a norm after each sum); otherwise it is the first sum, as in CRATE, where no sum
  follows that carries it on;
- `after` is what the next block's attention is added to. Where none follows, it is found by the operations that led
  there in an earlier block, and else it is the last sum, or that with its norm.

There is no stream where attention is not added to what it was computed from, where its keys are computed from something
else (cross-attention), and where attention and MLP stand side by side, so that there are no tokens between them. In a
decoder with cross-attention, nothing follows self-attention but that, and `after` is None.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearhead.heads import Heads
from clearhead.tracing.blocks import Axes, Block, BlockCall
from clearhead.tracing.dataflow import Dataflow, storage_of

__all__ = ["Residuals", "Sum"]

ATTENTION = "attention"
WAYS = 4
"""Ways from a first sum to the next block that are remembered: blocks of a model differ in few kinds."""
_MAP = re.compile(r"mm|linear|conv|einsum|matmul|attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A sum x + f(x): the tokens, where f(x) came through, and what it closes or follows."""

    carried: Tensor
    node: int
    closes: list[BlockCall]
    follows: Block | None


class Residuals:
    """Finds the blocks of one forward pass from its operations and attention calls, in the order in which they come."""

    def __init__(self) -> None:
        self.flow = Dataflow()
        self.calls: deque[BlockCall] = deque()
        self._open: list[BlockCall] = []
        self._waiting: Block | None = None
        self._ways: deque[list[str]] = deque(maxlen=WAYS)

    def called(self, heads: Heads, made: Tensor) -> BlockCall:
        """Note an attention call. One before, that it was computed from and that no sum has closed, has no block."""
        flow = self.flow
        asked = flow.node(heads.q), flow.node(heads.k)
        passed = [call for call in self._open if any(flow.reaches(call.node, node) for node in asked)]
        if passed:
            self._end()
            for call in passed:
                call.lost = True
                self._open.remove(call)
        node = flow.join(ATTENTION, [heads.q, heads.k, heads.v], [made])
        call = BlockCall(node=node, asked=asked, axes=Axes.of(heads))
        self.calls.append(call)
        self._open.append(call)
        return call

    def summed(self, x: Tensor, y: Tensor, *, either: bool) -> Sum | None:
        """What the sum of two tensors is to a block, None if nothing. either: whether y too may be what is carried."""
        if not self._open and self._waiting is None:
            return None
        flow = self.flow
        found = self._carried(x, y)
        if found is None:
            self._beside([flow.node(x), flow.node(y)])
            self._beside_sum([flow.node(x), flow.node(y)])
            return None
        second, node, carried = found
        branch = flow.node(x if second else y)
        way = flow.way(branch, node)
        if carried is None or (second and not either):
            for call in [call for call in self._open if call.node in way]:
                self._lose(call)
            return None
        # What has other tokens is a sum within the attention, of its values say.
        closes = [call for call in self._open if call.node in way and call.axes.laid_out(carried) is not None]
        if closes:
            return Sum(carried=carried, node=node, closes=closes, follows=None)
        block = self._waiting
        if block is None or not self._without_attention(node, branch) or not flow.reaches(block.node, node):
            return None
        return Sum(carried=carried, node=node, closes=[], follows=block)

    def _carried(self, x: Tensor, y: Tensor) -> tuple[bool, int, Tensor | None] | None:
        """Whether it is the second of two tensors that is carried past the other, its node, and the tensor itself.

        A tensor is if the other was computed from it, or from what it is a copy or a multiple of, which is then the one
        that is carried; None for the tensor if that is gone. None if neither is carried.
        """
        flow = self.flow
        pairs = [(False, x, flow.node(y)), (True, y, flow.node(x))]
        for second, carried, other in pairs if flow.node(x) < flow.node(y) else reversed(pairs):
            for node, tensor in flow.sources(carried):
                if node != other and flow.reaches(node, other):
                    return second, node, tensor
        return None

    def joined(self, parts: Sequence[Tensor]) -> None:
        """Note tensors that are put side by side, to be mapped together."""
        if self._open:
            self._beside([self.flow.node(x) for x in parts])

    def _beside(self, nodes: Sequence[int]) -> None:
        """Tensors come together of which none was computed from another: one may stand beside an open attention."""
        for call in self._open:
            through = [self.flow.reaches(call.node, node) for node in nodes]
            if any(through):
                call.sides += [node for node, passes in zip(nodes, through, strict=True) if not passes]

    def _beside_sum(self, nodes: Sequence[int]) -> None:
        """The same where they are added, of the block that waits: its own sum may not have been all of it."""
        flow, block = self.flow, self._waiting
        if block is not None:
            others = [node for node in nodes if not flow.reaches(block.node, node)]
            block.parallel |= len(others) == 1 and flow.reaches(block.before_node, others[0])

    def _lose(self, call: BlockCall) -> None:
        call.lost = True
        self._open.remove(call)

    def take(self, found: Sum, total: Tensor) -> None:
        """Go on with a sum that `summed` has found, now that it is there."""
        if found.follows is not None:
            self._follow(found.follows, found, total)
            return
        flow = self.flow
        self._settle(found)
        block = Block(
            node=flow.node(total),
            before_node=found.node,
            kept={"before": found.carried.detach(), "total": total.detach()},
        )
        for call in found.closes:
            self._open.remove(call)
            call.block = block
            call.lost = not all(flow.reaches(found.node, node) for node in call.asked)
            block.parallel |= any(self._without_attention(found.node, side) for side in call.sides)
        self._waiting = block

    def _without_attention(self, earlier: int, later: int) -> bool:
        """Whether one was computed from the other by something that has no attention in it."""
        way = self.flow.way(later, earlier)
        return earlier in way and not any(self.flow.name(node) == ATTENTION for node in way)

    def _follow(self, block: Block, found: Sum, total: Tensor) -> None:
        """Note a sum after the block's own. That of the oldest tokens is the next part's; others are in it or after."""
        flow = self.flow
        block.kept["last"] = total.detach()
        block.sums.append(flow.node(total))
        block.kept.pop("normed", None)
        block.norm_from = len(flow.steps)
        if block.between_node is not None and block.between_node <= found.node:
            return
        block.between_node = found.node
        block.kept["between"] = found.carried.detach()
        normed = found.node != block.node and not self._maps(found.node, block.node)
        block.norm = flow.steps[flow.position(block.node) : flow.position(found.node)] if normed else []
        block.norm_again = False

    def _maps(self, later: int, earlier: int) -> bool:
        """Whether a linear map lies on the way."""
        way = self.flow.way(later, earlier) - {earlier}
        return any(_MAP.search(self.flow.name(node)) is not None for node in way)

    def stepped(self, made: Tensor) -> None:
        """Look whether the operation that just ran has come to where an earlier block ended, or the norm did."""
        block = self._waiting
        if block is None:
            return
        steps = self.flow.steps
        start = self.flow.position(block.node)
        for way in self._ways:
            if len(steps) - start == len(way) and steps[start:] == way:
                block.kept["again"] = made.detach()
        norm, start = block.norm, block.norm_from
        if norm and len(steps) - start == len(norm) and steps[start:] == norm:
            block.kept["normed"] = made.detach()
            block.norm_again = True

    def _between(self, block: Block) -> str:
        carries_on = block.between_node == block.node or block.norm_again
        return "between" if block.between_node is not None and carries_on else "total"

    def _settle(self, found: Sum) -> None:
        """The block before is done, as the next block's tokens are known, if they were computed from its own."""
        block, flow = self._waiting, self.flow
        if block is None:
            return
        same = found.carried.numel() == block.kept["total"].numel()
        if not same or not flow.reaches(block.node, found.node):
            self._end()
            return
        self._waiting = None
        block.kept["next"] = found.carried.detach()
        followed = any(flow.reaches(node, found.node) for node in block.sums)
        if followed or self._maps(found.node, block.node):
            self._ways.append(flow.steps[flow.position(block.node) : flow.position(found.node)])
            block.settle(between=self._between(block), after="next")
        else:
            block.settle(between="next", after=None)

    def _end(self) -> None:
        """The block before is done, and no other follows it."""
        block, self._waiting = self._waiting, None
        if block is None:
            return
        between = self._between(block)
        last = "again" if "again" in block.kept else "normed" if "normed" in block.kept else None
        if last is None and block.between_node == block.node:
            last = "last"
        block.settle(between=between, after=last)

    def finish(self) -> None:
        """The pass is over."""
        self._end()
        for call in self._open:
            call.lost = True
        self._open.clear()

    def unshare(self, written: Sequence[Tensor]) -> None:
        """Copy what is kept in storages that are about to be written to."""
        for storage in {storage_of(x) for x in written}:
            if storage is not None:
                for call in self.calls:
                    call.unshare(storage)
