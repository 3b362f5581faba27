"""Operators to swap in, with different requirements."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from clearhead.operators import softmax_attention


def uniform(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """A function without declared properties: the mean of the visible values. The control of every swap."""
    return softmax_attention(torch.zeros_like(q), k, v, mask=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSteps:
    """Attend, subtract half of the result from the values, and attend again: tokens depend on earlier outputs.

    queries: the queries of the second step; `first`: those of the first
    """

    name: ClassVar[str] = "two-steps"
    queries: Literal["keys", "given"] = "keys"
    first: Literal["keys", "given"] = "keys"
    square: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset()

    @property
    def uses_queries(self) -> bool:
        return "given" in (self.queries, self.first)

    @property
    def needs_past_queries(self) -> bool:
        return self.first == "given"

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor:
        assert q.shape == k.shape
        smooth = softmax_attention(k if self.first == "keys" else q, k, v, mask=mask, scale=scale)
        return softmax_attention(k if self.queries == "keys" else q, k, v - smooth / 2, mask=mask, scale=scale)


class _Gained(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(start))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        return self.gain * softmax_attention(q, k, v, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gained:
    """Softmax attention times a learned number."""

    name: ClassVar[str] = "gained"
    start: float = 1.0
    square: ClassVar[bool] = False
    needs_past_queries: ClassVar[bool] = False
    uses_queries: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"bias", "softcap", "sinks"})

    def build(self) -> nn.Module:
        return _Gained(self.start)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        return self.start * softmax_attention(q, k, v, **given)


def named(operator: object) -> str:
    """Return the operator's test id, the same in every process."""
    return getattr(operator, "__name__", repr(operator))
