r"""Attention of one head (Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, equations (3), (4)).

The slides write tokens as columns, A_S(X) = W_v X softmax((W_k X)^T W_q X), and A_Q(X) = W_v X softmax((W_k X)^T Q)
with Q a free parameter instead of W_q X; here tokens are rows. Q has the width of the keys, d_k (the slides print d),
and n_Q columns. The slides have neither biases nor 1/sqrt(d_k): pass `bias=False, scale=1.0` for theirs.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_sizes, check_tokens, combine_masks, present
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.spatial import unfold
from clearhead.shapes import Bool, Float


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
        combined = combine_masks(x, x, mask=mask, key_mask=key_mask, causal=causal, attn_bias=attn_bias)
        options = present(mask=combined, bias=attn_bias, scale=self.scale)
        return self.operator(self.query(x), self.key(x), self.value(x), **options)


class LearnedQueryAttention(nn.Module):
    r"""Pooling of a set of any size to n_Q vectors, by attention of one head.

    .. math:: o_j = \sum_i w_{ji} W_v x_i, \qquad w_{ji} \propto \exp(\text{scale}\; W_k x_i \cdot q_j)

    embed_dim: width of the tokens x
    num_queries: n_Q, the number of output vectors for any number of tokens
    head_dim: d_k, width of W_k x and of a learned query q_j; embed_dim if None
    value_dim: width of W_v x and of the output; embed_dim if None
    bias: True for a bias in the two projections
    scale: factor of the scores; if None the operator chooses, 1/sqrt(d_k) for softmax attention
    operator: a function (q, k, v, *, mask, bias, scale); None options are not passed

    Without position codes in x and without masks it is invariant: the order of the tokens changes nothing.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        num_queries: int,
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
        check_sizes(embed_dim=embed_dim, num_queries=num_queries, head_dim=head_dim, value_dim=value_dim)
        # With this standard deviation the scores of unit keys have variance 1/d_k: at the start no token stands out.
        self.queries = nn.Parameter(
            torch.randn(num_queries, head_dim, device=device, dtype=dtype) / math.sqrt(head_dim)
        )
        self.key = nn.Linear(embed_dim, head_dim, bias=bias, device=device, dtype=dtype)
        self.value = nn.Linear(embed_dim, value_dim, bias=bias, device=device, dtype=dtype)
        self.scale = scale
        self.operator = operator

    def forward(
        self,
        x: Float[Tensor, "*b m c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        attn_bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Return the output of every learned query, (..., n_Q, e); zeros where there is no token.

        mask: True where a query may attend, broadcasts to (..., n_Q, m)
        key_mask: (..., m), True at tokens and False at padding, as `pad_sets` returns it
        attn_bias: added to the scores, broadcasts to (..., n_Q, m)
        """
        check_tokens({"x": x}, {"x": self.key})
        q = self.queries.expand(*x.shape[:-2], -1, -1)
        combined = combine_masks(q, x, mask=mask, key_mask=key_mask, attn_bias=attn_bias)
        k, v = self.key(x), self.value(x)
        return self.operator(q.to(k.dtype), k, v, **present(mask=combined, bias=attn_bias, scale=self.scale))

    def pool(
        self,
        x: Float[Tensor, "b ..."],
        *,
        channel_axis: int = 1,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n e"]:
        """Pool an image or a video, (b, c, *spatial) or (b, *spatial, c), to n_Q vectors: every position is a token.

        Only the channels distinguish positions. Without position codes, an image and the same image with shuffled
        pixels give the same vectors.
        """
        pooled: Tensor = self(unfold(x, channel_axis), key_mask=key_mask)
        return pooled
