"""The linear map from an attention call's output to what is added to the residual stream, followed through the graph.

Followed are operations that copy a tensor, one linear map (the output projection) if there is one, and then products
with constants and sums with tensors that do not depend on the output. A norm or a gate ends the map.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.interfaces.passes import Passes
from clearhead.shapes import Float

SUMS = {"aten::add", "aten::add_", "aten::sub", "aten::sub_"}
COPIES = {"aten::clone", "aten::_to_copy", "aten::to", "aten::contiguous", "aten::reshape"}
SCALES = {"aten::mul", "aten::div"}
_PROJECTIONS = {"aten::linear": (0, 1), "aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::matmul": (0, 1)}
"""The position of the input and of the weight among the arguments."""


def coefficient(name: str, kwargs: dict[str, Any]) -> float:
    """Return c of a sum x + c y."""
    return float(kwargs.get("alpha", 1)) * (-1 if "sub" in name else 1)


class OutputMap:
    """The tensors that are a linear function of one attention call's output plus others, by their node.

    out, node: the output, and the node of it or of its projection
    projection: weight of the output projection, if the node is that of the projected output
    copies: whether weights are copied, because they are not in memory after their module has run
    """

    def __init__(
        self,
        out: Float[Tensor, "b h n e"],
        node: int,
        *,
        projection: Float[Tensor, "c he"] | None = None,
        copies: bool = False,
    ) -> None:
        self._out = out
        self._keep = Tensor.clone if copies else Tensor.detach
        self._copies = {node} if projection is None else set()
        self._weights: dict[int, Float[Tensor, "he c"]] = {}
        if projection is not None:
            self._weights[node] = self._keep(projection).detach().mT

    def weight(self, node: int, factor: float) -> Float[Tensor, "h e c"] | None:
        """Return the weight of each head's output in the tensor of a node, times a factor; None if it is not linear."""
        if node not in self._weights:
            return None
        with Passes.paused():
            return _times(self._weights[node], factor).reshape(*self._out.shape[1::2], -1)

    def follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        nodes: Sequence[int],
        result: int,
        depends: Callable[[int], bool],
    ) -> None:
        """Follow one operation.

        nodes: of the tensors it read, in order; result: of what it made
        depends: whether a node depends on the output
        """
        if all(node not in self._copies and node not in self._weights for node in nodes):
            return
        with Passes.paused():
            if name in COPIES and nodes[0] in self._copies:
                self._copies.add(result)
            elif name in COPIES and nodes[0] in self._weights:
                self._weights[result] = self._weights[nodes[0]]
            elif name in _PROJECTIONS and not kwargs:
                self._project(name, args, nodes, result)
            elif name.removesuffix("_") in SCALES:
                self._note_unprojected(args, nodes)
                self._scale(args, nodes, result, depends, divide="div" in name)
            elif name in SUMS and len(nodes) == 2:
                self._note_unprojected(args, nodes)
                x, y = nodes
                for node, other, factor in ((x, y, 1.0), (y, x, coefficient(name, kwargs))):
                    if node in self._weights and not depends(other):
                        self._weights[result] = _times(self._weights[node], factor)

    def _note_unprojected(self, args: tuple[Any, ...], nodes: Sequence[int]) -> None:
        """Note that the output itself is used, without a projection."""
        for x, node in zip(args, nodes, strict=False):
            if node in self._copies and isinstance(x, Tensor) and self._is_output(x):
                self._weights[node] = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def _project(self, name: str, args: tuple[Any, ...], nodes: Sequence[int], result: int) -> None:
        at, weight_at = _PROJECTIONS[name]
        x, weight = args[at], args[weight_at]
        if nodes[at] in self._copies and weight.ndim == 2 and self._is_output(x):
            self._weights[result] = self._keep(weight.mT if name == "aten::linear" else weight).detach()

    def _scale(
        self,
        args: tuple[Any, ...],
        nodes: Sequence[int],
        result: int,
        depends: Callable[[int], bool],
        *,
        divide: bool,
    ) -> None:
        """Follow a product with a number, or with one number per feature."""
        at = 0 if nodes[0] in self._weights else 1
        factor = args[1 - at]
        if nodes[at] not in self._weights or (divide and at == 1):
            return
        if isinstance(factor, Tensor):
            if depends(nodes[1 - at]) or factor.numel() not in (1, *factor.shape[-1:]):
                return
            factor = factor.detach().flatten()
        self._weights[result] = _times(self._weights[nodes[at]], 1 / factor if divide else factor)

    def _is_output(self, x: Tensor) -> bool:
        """Return whether x is the output with the features of all heads in one row per token."""
        rows = self._out.movedim(1, 2).flatten(2)
        if x.shape[-1] != rows.shape[-1] or x.numel() != rows.numel() or x.dtype != rows.dtype:
            return False
        return any(torch.equal(x.reshape(order.shape), order) for order in (rows, rows.transpose(0, 1)))


def _times(weight: Tensor, factor: float | Tensor) -> Tensor:
    """Return the product; the weight itself, and no copy, for the factor 1."""
    return weight if isinstance(factor, float) and factor == 1 else weight * factor
