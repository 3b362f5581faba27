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
from clearhead.shapes import Float
from clearhead.sockets.columns import Columns, Sampled
from clearhead.sockets.linear_call import LinearCall, holds, is_plain

__all__ = ["MapTrace"]

NOTED = 8
"""Calls kept at a time. Gates and the like may be projected after q, k and v; what lies further back is let go."""


class MapTrace:
    """The last linear calls of a forward pass, and where the parts of each layer were found among them."""

    def __init__(self) -> None:
        self._calls: deque[LinearCall] = deque(maxlen=NOTED)
        self._asked = False
        self._found: dict[tuple[str, str], tuple[int, Columns]] = {}

    @contextmanager
    def watched(self, running: Callable[[], bool]) -> Iterator[None]:
        """Note linear calls while `running()`; torch has its own functions back afterwards."""
        linear, addmm = torch.nn.functional.linear, torch.addmm

        def noted_linear(*args: Any, **kwargs: Any) -> Tensor:
            out = linear(*args, **kwargs)
            if running() and not torch.compiler.is_compiling():
                self._note(LinearCall.noted(out, *_linear_arguments(*args, **kwargs)))
            return out

        def noted_addmm(*args: Any, **kwargs: Any) -> Tensor:
            out = addmm(*args, **kwargs)
            if len(args) == 3 and not kwargs and running() and not torch.compiler.is_compiling():
                bias, x, weight = args
                self._note(LinearCall.noted(out, x, weight.mT, bias))
            return out

        torch.nn.functional.linear, torch.addmm = noted_linear, noted_addmm
        try:
            yield
        finally:
            torch.nn.functional.linear, torch.addmm = linear, addmm
            self.forget()

    def _note(self, call: LinearCall) -> None:
        """Keep the call. Those before an attention that has been answered for are let go."""
        if self._asked:
            self.forget()
        self._calls.append(call)

    def forget(self) -> None:
        """Let go of every call noted."""
        self._calls.clear()
        self._asked = False

    @torch.no_grad()
    def with_origins(self, heads: Heads) -> Heads:
        """The call with the maps that made its queries, keys and values; None for what no map made.

        The linear calls noted are kept until the next of them, as a layer may attend several times to what they made.
        """
        calls = list(reversed(self._calls))
        self._asked = True
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


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of torch's function in their order, whatever names they were given by."""
    return input, weight, bias
