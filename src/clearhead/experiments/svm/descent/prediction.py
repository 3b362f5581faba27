r"""Prediction heads and losses of the sources, with their derivatives.

Tarzanagh et al. 2023 use a fixed linear head, :math:`h(o) = v^T o`, and in section 6 of arXiv 2308.16898 a nonlinear
one, :math:`h(o) = 1^T \mathrm{relu}(V^T o)`. Losses decrease in the margin y h(o).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.shapes import Float

__all__ = ["CORRELATION", "EXPONENTIAL", "LOGISTIC", "LinearHead", "Loss", "PredictionHead", "ReluHead"]


@runtime_checkable
class PredictionHead(Protocol):
    """A scalar function of the output o with its derivative, one per run."""

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return the gradient of h at o."""


@dataclass(frozen=True, slots=True)
class LinearHead:
    """h(o) = v.o"""

    v: Float[Tensor, "r c"]

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""
        return (outputs @ self.v.unsqueeze(-1)).squeeze(-1)

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return v for every o."""
        return self.v.unsqueeze(1).expand(outputs.shape)


@dataclass(frozen=True, slots=True)
class ReluHead:
    """h(o) = the sum of relu(V^T o). Its slope depends on the average of the tokens, not on single tokens."""

    V: Float[Tensor, "r c k"]

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""
        return (outputs @ self.V).clamp(min=0).sum(dim=-1)

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return the sum of the columns of V that have a positive product with o."""
        return ((outputs @ self.V) > 0).to(outputs.dtype) @ self.V.mT


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A decreasing function of the margin and its derivative, entry by entry."""

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


LOGISTIC = Loss(name="logistic", value=lambda x: -torch.nn.functional.logsigmoid(x), slope=lambda x: -torch.sigmoid(-x))
r""":math:`\log(1 + e^{-x})`"""
EXPONENTIAL = Loss(name="exponential", value=lambda x: torch.exp(-x), slope=lambda x: -torch.exp(-x))
r""":math:`e^{-x}`"""
CORRELATION = Loss(name="correlation", value=torch.neg, slope=lambda x: -torch.ones_like(x))
r""":math:`-x`"""
