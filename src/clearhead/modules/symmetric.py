r"""Multi-head attention whose queries are its keys (Teo and Nguyen 2024, "symmetric attention").

The source drops W_Q, so a layer has three maps in place of four. Theirs is one map for keys and values together; here
each has its own, as in the other modules.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.modules.token_attention import TokenAttention
from clearhead.operators.symmetric import symmetric_attention

__all__ = ["SymmetricAttention"]


class SymmetricAttention(TokenAttention):
    r"""Several symmetric attentions side by side, and a map of all their outputs.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = A(W_k^{(i)} X, W_v^{(i)} X)

    operator: a function (k, v, *, mask, scale), called with those that are given

    The other arguments are those of `TokenAttention`.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int | None = None,
        value_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = symmetric_attention,
    ) -> None:
        super().__init__(
            width,
            heads=heads,
            head_width=head_width,
            value_width=value_width,
            out_width=out_width,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=operator,
        )

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The operator on keys and values alone."""
        return self.operator(k, v, **options)
