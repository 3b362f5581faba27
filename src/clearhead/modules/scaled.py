r"""Multi-head scaled attention, which learns what to subtract from its values (Teo and Nguyen 2024, remark 3).

The source's V^ is X W_V, and S is the source's: one matrix for each head, or one alpha for a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.modules.token_attention import TokenAttention
from clearhead.operators.learned_scaling import Form, Scaled
from clearhead.operators.resizing import Layout

__all__ = ["ScaledAttention"]


class ScaledAttention(TokenAttention):
    r"""Multi-head scaled attention.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = \operatorname{softmax}(\text{scale}\; Q_i K_i^\top)(I - S_i) V_i

    form: "matrix" for a free S_i; "symmetric" for S_i = alpha softmax(K_i K_i^T scale); "asymmetric" with Q_i instead
        of the first K_i. The source's readme calls asymmetric what its code and its figure have as symmetric
    num_tokens: the number of tokens of a matrix S
    per_head: True for one alpha for each head; as published, a layer has one
    resize, num_prefix_tokens: how a matrix S adapts to another number of tokens, see `clearhead.operators.SMatrix`

    The other arguments are those of `TokenAttention`; queries are as wide as keys.

    S starts at zero, where the layer equals `MultiHeadAttention` with the same projections, to the bit. alpha is a
    vector, which recipes for AdamW exclude from weight decay; the source decays a matrix S by 0.05 like other weights.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        form: Form,
        num_tokens: int | None = None,
        per_head: bool = False,
        resize: Layout | None = None,
        num_prefix_tokens: int = 0,
        head_dim: int | None = None,
        value_dim: int | None = None,
        out_dim: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        scaled = Scaled(
            form=form,
            num_tokens=num_tokens,
            num_heads=num_heads,
            per_head=per_head,
            resize=resize,
            num_prefix_tokens=num_prefix_tokens,
        )
        super().__init__(
            embed_dim,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            out_dim=out_dim,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=scaled.build().to(device=device, dtype=dtype),
            device=device,
            dtype=dtype,
        )
        self.query = nn.Linear(embed_dim, self.key.out_features, bias=bias, device=device, dtype=dtype)

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return scaled attention in every head; the mask also applies to S."""
        return self.operator(self.split_heads(self.query(x)), k, v, **options)
