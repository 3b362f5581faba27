"""What a layer's queries, keys and values were made from: the linear maps whose outputs they are, found by numbers.

While sockets are open, calls of torch.nn.functional.linear and torch.addmm are noted: torch's linear layers end in the
one, transformers' Conv1D in the other, and layers that project without a module of their own are caught too. No module
is touched, so torch's fused paths stay as they are. When attention is called, each of the three is looked for among the
columns of the last outputs: a projection of its own, a fused one in any order of q, k, v, heads and features, or heads
that several queries share; as they are, or multiplied by one constant, as some models do to their queries.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clearhead.heads import Heads, LinearMap
from clearhead.interfaces.modes import CallMode
from clearhead.shapes import Float
from clearhead.tracing.columns import Columns, Sampled
from clearhead.tracing.linear_call import LinearCall, holds, is_plain

__all__ = ["MapTrace"]

_LINEAR, _ADDMM = torch.nn.functional.linear, torch.addmm

NOTED = 8
"""Calls kept at a time. Gates and the like may be projected after q, k and v; what lies further back is let go."""


class MapTrace:
    """The last linear calls of a forward pass, and where the parts of each layer were found among them."""

    def __init__(self, listening: Callable[[], bool]) -> None:
        self._listening = listening
        self._calls: deque[LinearCall] = deque(maxlen=NOTED)
        self._searched = False
        self._found: dict[tuple[str, str], tuple[int, Columns]] = {}

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
        """Let go of every call noted."""
        self._calls.clear()
        self._searched = False

    @torch.no_grad()
    def with_origins(self, heads: Heads) -> Heads:
        """The call with the maps that made its queries, keys and values; None for what no map made.

        The linear calls noted are kept until the next of them, as a layer may attend several times to what they made.
        """
        calls = list(reversed(self._calls))
        self._searched = True
        sampled: dict[Any, Sampled] = {}
        return dataclasses.replace(
            heads,
            queries_from=self._origin((heads.name, "q"), heads.q, calls, sampled),
            keys_from=self._origin((heads.name, "k"), heads.k, calls, sampled),
            values_from=self._origin((heads.name, "v"), heads.v, calls, sampled),
        )

    def _origin(
        self,
        key: tuple[str, str],
        y: Float[Tensor, "b h t f"],
        calls: list[LinearCall],
        sampled: dict[Any, Sampled],
    ) -> LinearMap | None:
        """The linear map whose output y is, None if there is none.

        Every number must equal an entry of the map's output exactly, or times one constant, to the rounding of that
        product. Where nobody has written into the call's tensors since, that makes it the map, and multiplying a few
        tokens out is enough; otherwise all are. So an output that was multiplied in place is no map's.
        """
        if y.numel() == 0 or not is_plain(y):
            return None
        if key in self._found:
            last, known = self._found[key]
            for call in calls[last : last + 1] + calls[:last] + calls[last + 1 :]:
                found = known.linear_map(call, y)
                if found is not None and (call.unwritten() or holds(found, y)):
                    return found
        alike = (y.shape[0], y.shape[2], y.dtype, y.device)
        if alike not in sampled:
            sampled[alike] = Sampled.of(calls, y)
        tokens = sampled[alike].tokens
        for place, columns in sampled[alike].find(y):
            found = columns.linear_map(calls[place], y)
            if found is not None and holds(found, y, tokens if calls[place].unwritten() else None):
                self._found[key] = place, columns
                return found
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
            self.trace.note(LinearCall.noted(out, *_linear_arguments(*args, **kwargs)))
        elif len(args) == 3 and not kwargs:
            bias, x, weight = args
            self.trace.note(LinearCall.noted(out, x, weight.mT, bias))
        return out


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of torch's function in their order, whatever names they were given by."""
    return input, weight, bias
