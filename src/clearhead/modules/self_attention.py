r"""Self-attention of one head (Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, equation (3)).

The slides write tokens as columns, A_S(X) = W_v X softmax((W_k X)^T W_q X); here they are rows. The slides have neither
biases nor 1/sqrt(d_k): pass `bias=False, scale=1.0` for theirs.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_sizes, check_tokens, combine_masks
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float

__all__ = ["SelfAttention"]


class SelfAttention(nn.Module):
    r"""Attention of one head within one set, without an output projection.

    .. math:: o_j = \sum_i w_{ji} W_v x_i, \qquad w_{ji} \propto \exp(\text{scale}\; W_k x_i \cdot W_q x_j)

    embed_dim: width of the tokens x
    head_dim: d_k, width of W_q x and W_k x; embed_dim if None
    value_dim: width of W_v x and of the output; embed_dim if None
    bias: True for a bias in the three projections
    scale: factor of the scores; if None the operator chooses, 1/sqrt(d_k) for softmax attention
    operator: a function (q, k, v, *, mask, bias, scale); None options are not passed

    Without position codes in x and without masks it is equivariant: permuted tokens give permuted outputs.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = softmax_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        head_dim = embed_dim if head_dim is None else head_dim
        value_dim = embed_dim if value_dim is None else value_dim
        check_sizes(embed_dim=embed_dim, head_dim=head_dim, value_dim=value_dim)
        self.query = nn.Linear(embed_dim, head_dim, bias=bias, device=device, dtype=dtype)
        self.key = nn.Linear(embed_dim, head_dim, bias=bias, device=device, dtype=dtype)
        self.value = nn.Linear(embed_dim, value_dim, bias=bias, device=device, dtype=dtype)
        self.scale = scale
        self.operator = operator

    def forward(
        self,
        x: Float[Tensor, "*b n c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
        attn_bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Return the output of every token, (..., n, e).

        mask: True where a token may attend, broadcasts to (..., n, n)
        key_mask: (..., n), True at tokens and False at padding, as `pad_sets` returns it
        causal: True if a token sees only itself and the tokens before it
        attn_bias: added to the scores, broadcasts to (..., n, n)
        """
        check_tokens({"x": x}, {"x": self.query})
        combined = combine_masks(
            (*x.shape[:-1], x.shape[-2]),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            attn_bias=attn_bias,
            leading=x.ndim - 2,
            device=x.device,
        )
        options = {"mask": combined, "bias": attn_bias, "scale": self.scale}
        options = {name: option for name, option in options.items() if option is not None}
        return self.operator(self.query(x), self.key(x), self.value(x), **options)
