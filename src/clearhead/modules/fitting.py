"""The module that fits an operator: one with a map for queries where they enter, and one without where they do not."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.modules.symmetric import SymmetricAttention
from clearhead.shapes import Bool, Float

__all__ = ["ByKeys", "attention_module"]


class ByKeys:
    """An operator that every token asks by its own key, (k, v, *, mask, scale)."""

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
        """The outputs, (..., n, e)."""
        return self.operator(k, k, v, mask=mask, scale=scale)


def attention_module(operator: Any, *, width: int, heads: int) -> nn.Module:
    """Self-attention over tokens of this width by an operator of `clearhead.operators.drop_in.DROP_INS`.

    Where the operator leaves the layer's queries out there is no W_Q, as symmetric attention was published. All other
    maps have the names, shapes and biases that they have in `MultiHeadAttention`. What an operator learns is built
    here, and is a parameter of the module.
    """
    if not operator.uses_queries:
        return SymmetricAttention(width, heads=heads, operator=ByKeys(operator))
    built = operator.build() if hasattr(operator, "build") else operator
    return MultiHeadAttention(width, heads=heads, operator=built)
