"""The module for an operator: with a projection of queries if the operator uses queries, without one if not."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from clearhead.modules import SymmetricAttention
from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.shapes import Bool, Float

__all__ = ["KeysAsQueries", "attention_module"]


class KeysAsQueries:
    """An operator (q, k, v, *, mask, scale) with keys as queries, (k, v, *, mask, scale)."""

    def __init__(self, operator: Callable[..., Tensor]) -> None:
        self.operator = operator

    def __call__(
        self,
        k: Float[Tensor, "*b n d"],
        v: Float[Tensor, "*b n e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Return the output, (..., n, e)."""
        return self.operator(k, k, v, mask=mask, scale=scale)


def attention_module(operator: Any, *, embed_dim: int, num_heads: int) -> nn.Module:
    """Return self-attention by an operator of `clearhead.operators.OPERATORS`.

    If the operator ignores queries there is no W_Q, as symmetric attention was published. All other projections have
    the names, shapes and biases of `MultiHeadAttention`. Parameters of an operator become parameters of the module.
    """
    if not operator.uses_queries:
        return SymmetricAttention(embed_dim, num_heads, operator=KeysAsQueries(operator))
    operator = operator.build() if hasattr(operator, "build") else operator
    return MultiHeadAttention(embed_dim, num_heads, operator=operator)
