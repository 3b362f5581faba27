r"""Multi-head attention whose queries are its keys (Teo and Nguyen 2024, "symmetric attention").

The source drops W_Q, so a layer has three projections instead of four. The source has one projection for keys and
values together; here each has its own, as in the other modules.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.modules.token_attention import TokenAttention
from clearhead.operators.symmetric import symmetric_attention

__all__ = ["SymmetricAttention"]


class SymmetricAttention(TokenAttention):
    r"""Multi-head symmetric attention.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = A(W_k^{(i)} X, W_v^{(i)} X)

    operator: A, a function (k, v, *, mask, scale) that uses keys as queries; None options are not passed

    The other arguments are those of `TokenAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        out_dim: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = symmetric_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            out_dim=out_dim,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=operator,
            device=device,
            dtype=dtype,
        )

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Call the operator with keys and values."""
        return self.operator(k, v, **options)
