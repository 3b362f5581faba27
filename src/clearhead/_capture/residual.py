"""The residual stream around attention, found from the sums that a model computes, for any architecture.

Every operation of a forward pass is recorded with its inputs, so that for any two tensors it is known whether one was
computed from the other. A sum x + f(x) in which f contains an attention call closes that call's block; x is the
residual stream. A later sum y + g(y), with y computed from the first sum and no attention in g, belongs to what follows
the attention, for example its MLP. One rule applies to all models:

- `before` is x, and `total` the first sum;
- `between` is y if y is the first sum itself (pre-norm), or if the same operations lead from the first sum to y as
  follow the second sum (post-norm: a norm after each sum). Otherwise `between` is the first sum, as in CRATE, where no
  later sum contains the first;
- `after` is the tensor that the next block's attention is added to. Without a next block, `after` is found by the
  operations that led there in an earlier block; otherwise `after` is the last sum, or the norm of that sum.

There is no residual stream if attention is not added to its own input, if its keys come from another sequence
(cross-attention), or if attention and MLP are parallel, so that there are no tokens between them. In a decoder only the
cross-attention follows self-attention, and `after` is None.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from clearhead._capture.blocks import Axes, Block, BlockCall
from clearhead._capture.dataflow import Dataflow, storage_of
from clearhead._capture.output_maps import OutputMap
from clearhead.heads import Heads, LayerNorm

ATTENTION = "attention"
PATHS = 4
"""The number of remembered paths from a first sum to the next block: models have few kinds of blocks."""
_MAP = re.compile(r"mm|linear|conv|einsum|matmul|attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A sum x + c f(x): the residual operand x, the node of x, the calls whose block ends here, and the block before.

    branch, coefficient: the node of f(x), and c
    closes: the calls whose block the sum ends
    follows: the block whose later sum this is, if any
    """

    operand: Tensor
    node: int
    branch: int
    coefficient: float
    closes: list[BlockCall]
    follows: Block | None


class Residuals:
    """The blocks of one forward pass, found from its operations and attention calls in the order of the pass.

    copies: whether weights are copied, because the memory of weights is freed after their module has run
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._copies = copies
        self.flow = Dataflow()
        self.calls: deque[BlockCall] = deque()
        self._open: list[BlockCall] = []
        self._waiting: Block | None = None
        self._paths: deque[list[str]] = deque(maxlen=PATHS)

    def note_call(self, heads: Heads, output: Tensor, *, projection: Tensor | None = None) -> BlockCall:
        """Note an attention call. Earlier calls without a sum, from which this call was computed, have no block.

        projection: weight of the output projection that is already applied to `output`
        """
        flow = self.flow
        operands = flow.node(heads.q), flow.node(heads.k)
        passed = [call for call in self._open if any(flow.reaches(call.node, node) for node in operands)]
        if passed:
            self._end()
            for call in passed:
                call.lost = True
                self._open.remove(call)
        node = flow.join(ATTENTION, [heads.q, heads.k, heads.v], [output])
        output_map = OutputMap(heads.out, node, projection=projection, copies=self._copies)
        call = BlockCall(node=node, operands=operands, axes=Axes.of(heads), output_map=output_map)
        self.calls.append(call)
        self._open.append(call)
        return call

    def classify_sum(self, x: Tensor, y: Tensor, *, coefficient: float) -> Sum | None:
        """Return the role of x + coefficient * y in a block, None if it has none."""
        if not self._open and self._waiting is None:
            return None
        flow = self.flow
        operand = self._residual_operand(x, y)
        if operand is None:
            self._note_parallel([flow.node(x), flow.node(y)])
            self._note_parallel_sum([flow.node(x), flow.node(y)])
            return None
        second, node, tensor = operand
        branch = flow.node(x if second else y)
        path = flow.path(branch, node)
        if tensor is None or (second and coefficient != 1):
            for call in [call for call in self._open if call.node in path]:
                call.lost = True
                self._open.remove(call)
            return None
        # A sum of other tokens is inside the attention, for example a sum of its values.
        closes = [call for call in self._open if call.node in path and call.axes.by_input(tensor) is not None]
        if closes:
            return Sum(operand=tensor, node=node, branch=branch, coefficient=coefficient, closes=closes, follows=None)
        block = self._waiting
        if block is None or not self._without_attention(node, branch) or not flow.reaches(block.node, node):
            return None
        return Sum(operand=tensor, node=node, branch=branch, coefficient=coefficient, closes=[], follows=block)

    def _residual_operand(self, x: Tensor, y: Tensor) -> tuple[bool, int, Tensor | None] | None:
        """Find the residual operand of `x + y`: the one from which the other was computed.

        Return whether the operand is y, the node, and the tensor; None if there is no such operand. The operand may be
        a copy or a multiple of a tensor from which the other was computed: then that tensor is returned, or None in its
        place if the tensor no longer exists.
        """
        flow = self.flow
        pairs = [(False, x, flow.node(y)), (True, y, flow.node(x))]
        for second, operand, other in pairs if flow.node(x) < flow.node(y) else reversed(pairs):
            for node, tensor in flow.sources(operand):
                if node != other and flow.reaches(node, other):
                    return second, node, tensor
        return None

    def note_concatenation(self, tensors: Sequence[Tensor]) -> None:
        """Note tensors that are concatenated, to be mapped together."""
        if self._open:
            self._note_parallel([self.flow.node(x) for x in tensors])

    def _note_parallel(self, nodes: Sequence[int]) -> None:
        """Note tensors that are combined, none computed from another. One of these may be parallel to attention."""
        for call in self._open:
            through = [self.flow.reaches(call.node, node) for node in nodes]
            if any(through):
                call.sides += [node for node, passes in zip(nodes, through, strict=True) if not passes]

    def _note_parallel_sum(self, nodes: Sequence[int]) -> None:
        """Note terms of a sum of which one may be parallel to the attention of the waiting block."""
        flow, block = self.flow, self._waiting
        if block is not None:
            others = [node for node in nodes if not flow.reaches(block.node, node)]
            block.parallel |= len(others) == 1 and flow.reaches(block.before_node, others[0])

    def apply_sum(self, residual_sum: Sum, total: Tensor) -> None:
        """Record the result of a sum that `classify_sum` has classified."""
        if residual_sum.follows is not None:
            self._follow(residual_sum.follows, residual_sum, total)
            return
        flow = self.flow
        self._settle(residual_sum)
        block = Block(
            node=flow.node(total),
            before_node=residual_sum.node,
            tensors={"before": residual_sum.operand.detach(), "total": total.detach()},
        )
        for call in residual_sum.closes:
            self._open.remove(call)
            call.block = block
            call.output_weight = call.output_map.weight(residual_sum.branch, residual_sum.coefficient)
            call.lost = not all(flow.reaches(residual_sum.node, node) for node in call.operands)
            block.parallel |= any(self._without_attention(residual_sum.node, side) for side in call.sides)
        self._waiting = block

    def _without_attention(self, earlier: int, later: int) -> bool:
        """Return whether `later` was computed from `earlier` without attention."""
        path = self.flow.path(later, earlier)
        return earlier in path and not any(self.flow.name(node) == ATTENTION for node in path)

    def _follow(self, block: Block, residual_sum: Sum, total: Tensor) -> None:
        """Note a later sum of a block. The sum with the oldest tokens belongs to what follows the attention."""
        flow = self.flow
        block.tensors["last"] = total.detach()
        block.sums.append(flow.node(total))
        block.tensors.pop("normed", None)
        block.norm_from = len(flow.steps)
        if block.between_node is not None and block.between_node <= residual_sum.node:
            return
        block.between_node = residual_sum.node
        block.tensors["between"] = residual_sum.operand.detach()
        normed = residual_sum.node != block.node and not self._maps(residual_sum.node, block.node)
        block.norm = flow.steps[flow.position(block.node) : flow.position(residual_sum.node)] if normed else []
        block.norm_again = False

    def _maps(self, later: int, earlier: int) -> bool:
        """Return whether `later` was computed from `earlier` with a linear map."""
        path = self.flow.path(later, earlier) - {earlier}
        return any(_MAP.search(self.flow.name(node)) is not None for node in path)

    def note_step(self, output: Tensor) -> None:
        """Note a tensor that the same operations have computed as the end of an earlier block, or as the norm."""
        block = self._waiting
        if block is None:
            return
        steps = self.flow.steps
        start = self.flow.position(block.node)
        for path in self._paths:
            if len(steps) - start == len(path) and steps[start:] == path:
                block.tensors["again"] = output.detach()
        norm, start = block.norm, block.norm_from
        if norm and len(steps) - start == len(norm) and steps[start:] == norm:
            block.tensors["normed"] = output.detach()
            block.norm_again = True

    def _between(self, block: Block) -> str:
        goes_on = block.between_node == block.node or block.norm_again
        return "between" if block.between_node is not None and goes_on else "total"

    def follow_outputs(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], node: int) -> None:
        """Follow the outputs of attention calls through one operation, up to the sum."""
        flow = self.flow
        for call in self._open:
            call.output_map.follow(
                name, args, kwargs, nodes=flow.parents(node), result=node, depends=partial(flow.reaches, call.node)
            )

    def note_layer_norm(self, args: tuple[Any, ...], node: int) -> None:
        """Note a layer norm of the waiting block's sum."""
        block = self._waiting
        if block is None or self.flow.parents(node)[0] != block.node:
            return
        x, shape, weight, bias, eps = args[:5]
        if list(shape) == [x.shape[-1]]:
            keep = Tensor.clone if self._copies else Tensor.detach
            weight, bias = (None if part is None else keep(part).detach() for part in (weight, bias))
            block.layer_norms[node] = LayerNorm(weight=weight, bias=bias, eps=eps)

    def _settle(self, residual_sum: Sum) -> None:
        """Settle the waiting block, now that the tokens of the next one are known."""
        block, flow = self._waiting, self.flow
        if block is None:
            return
        same_size = residual_sum.operand.numel() == block.tensors["total"].numel()
        if not same_size or not flow.reaches(block.node, residual_sum.node):
            self._end()
            return
        self._waiting = None
        block.tensors["next"] = residual_sum.operand.detach()
        followed = any(flow.reaches(node, residual_sum.node) for node in block.sums)
        if followed or self._maps(residual_sum.node, block.node):
            self._paths.append(flow.steps[flow.position(block.node) : flow.position(residual_sum.node)])
            between = self._between(block)
            block.settle(
                between=between, between_node=block.between_node if between == "between" else None, after="next"
            )
        else:
            block.settle(between="next", between_node=residual_sum.node, after=None)

    def _end(self) -> None:
        """Settle the waiting block, which no other block follows."""
        block, self._waiting = self._waiting, None
        if block is None:
            return
        between = self._between(block)
        last = "again" if "again" in block.tensors else "normed" if "normed" in block.tensors else None
        if last is None and block.between_node == block.node:
            last = "last"
        block.settle(between=between, between_node=block.between_node if between == "between" else None, after=last)

    def finish(self) -> None:
        """End the pass."""
        self._end()
        for call in self._open:
            call.lost = True
        self._open.clear()

    def unshare(self, written: Sequence[Tensor]) -> None:
        """Copy the tensors in storages that are about to be overwritten."""
        for storage in {storage_of(x) for x in written}:
            if storage is not None:
                for call in self.calls:
                    call.unshare(storage)
