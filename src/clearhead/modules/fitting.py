"""The module that fits an operator: one with a map for queries where they enter, and one without where they do not."""

from dataclasses import dataclass

from torch import Tensor, nn

from clearhead.axes import Bool, Float
from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.modules.symmetric import SymmetricAttention
from clearhead.operators.drop_in import DropIn

__all__ = ["ByKeys", "attention_module"]


@dataclass(frozen=True, slots=True)
class ByKeys:
    """An operator that every token asks by its own key, (k, v, *, mask, scale)."""

    operator: DropIn

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


def attention_module(operator: DropIn, *, width: int, heads: int) -> nn.Module:
    """Self-attention over tokens of this width by the operator.

    Where the operator leaves the layer's queries out there is no W_Q, as symmetric attention was published. All other
    maps have the names, shapes and biases that they have in `MultiHeadAttention`.
    """
    if operator.uses_queries:
        return MultiHeadAttention(width, heads=heads, operator=operator)
    return SymmetricAttention(width, heads=heads, operator=ByKeys(operator))
