"""The linear maps of a layer's queries, keys and values, found by comparing numbers.

During a forward pass, calls of torch.nn.functional.linear and torch.addmm are noted: torch's linear layers call the
first, transformers' Conv1D the second, and so do layers that project without a module of their own. When attention is
called, q, k and v are each looked for among the columns of the last outputs: a projection of its own, a fused one in
any order of q, k, v, heads and features, or heads that several queries share; unchanged, or multiplied by one constant,
as some models do to their queries.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clearhead._capture.columns import Columns, LinearCall, Sampled, holds, is_plain
from clearhead.heads import Heads, LinearMap
from clearhead.interfaces.passes import CallMode
from clearhead.shapes import Float

_LINEAR, _ADDMM = torch.nn.functional.linear, torch.addmm

NOTED = 8
"""The number of noted calls. Gates may be projected after q, k and v; earlier calls are dropped."""


class MapTrace:
    """The last linear calls of a forward pass, and the columns in which each layer's operands were found.

    listening: whether the calls that run now belong to the model
    copies: whether weights are copied, because they are not in memory after their module has run
    """

    def __init__(self, listening: Callable[[], bool]) -> None:
        self.copies = False
        self._listening = listening
        self._calls: deque[LinearCall] = deque(maxlen=NOTED)
        self._searched = False
        self._columns: dict[tuple[str, str], tuple[int, Columns]] = {}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Note the linear calls of one forward pass, in this thread."""
        with _LinearMode(self):
            try:
                yield
            finally:
                self.forget()

    def note(self, call: LinearCall) -> None:
        """Keep the call; drop those before an attention call whose maps have been found."""
        if not self._listening():
            return
        if self._searched:
            self.forget()
        self._calls.append(call)

    def forget(self) -> None:
        """Drop the noted calls."""
        self._calls.clear()
        self._searched = False

    @torch.no_grad()
    def with_origins(self, heads: Heads) -> Heads:
        """Return the call with the maps of its queries, keys and values, None for those without a map.

        The noted calls are held until the next one, because a layer may attend several times to their outputs.
        """
        calls = list(reversed(self._calls))
        self._searched = True
        sampled: dict[Any, Sampled] = {}
        operands = {"queries_from": heads.q, "keys_from": heads.k, "values_from": heads.v}
        maps: dict[str, Any] = {
            field: self._kept(self._origin((heads.name, field), y, calls, sampled)) for field, y in operands.items()
        }
        return dataclasses.replace(heads, **maps)

    def _kept(self, linear_map: LinearMap | None) -> LinearMap | None:
        if linear_map is None or not self.copies:
            return linear_map
        bias = None if linear_map.bias is None else linear_map.bias.clone()
        return dataclasses.replace(linear_map, weight=linear_map.weight.clone(), bias=bias)

    def _origin(
        self,
        key: tuple[str, str],
        y: Float[Tensor, "b h t f"],
        calls: list[LinearCall],
        sampled: dict[Any, Sampled],
    ) -> LinearMap | None:
        """Return the linear map whose output is y, or None.

        Every number must equal an entry of the map's output exactly, or times one constant, to the rounding of that
        product. If the call's tensors have not been written to since, computing the map on a few tokens is enough;
        otherwise it is computed on all. So an output that was multiplied in place has no map.
        """
        if y.numel() == 0 or not is_plain(y):
            return None
        if key in self._columns:
            last, columns = self._columns[key]
            for call in calls[last : last + 1] + calls[:last] + calls[last + 1 :]:
                linear_map = columns.linear_map(call, y)
                if linear_map is not None and (call.unwritten() or holds(linear_map, y)):
                    return linear_map
        shape = (y.shape[0], y.shape[2], y.dtype, y.device)
        if shape not in sampled:
            sampled[shape] = Sampled.of(calls, y)
        tokens = sampled[shape].tokens
        for index, columns in sampled[shape].find(y):
            linear_map = columns.linear_map(calls[index], y)
            if linear_map is not None and holds(linear_map, y, tokens if calls[index].unwritten() else None):
                self._columns[key] = index, columns
                return linear_map
        return None


class _LinearMode(CallMode):
    """Shows the calls of torch.nn.functional.linear and torch.addmm to a trace."""

    def __init__(self, trace: MapTrace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if (func is not _LINEAR and func is not _ADDMM) or torch.compiler.is_compiling():
            return out
        if func is _LINEAR:
            self.trace.note(LinearCall.record(out, *_linear_arguments(*args, **kwargs)))
        elif len(args) == 3 and not kwargs:
            bias, x, weight = args
            self.trace.note(LinearCall.record(out, x, weight.mT, bias))
        return out


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of torch's function in order, whether passed by position or name."""
    return input, weight, bias
