r"""Attention with a learned query (Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, eq. (4)).

The slides write tokens as columns, A_Q(X) = W_v X softmax((W_k X)^T Q) with Q a free parameter in place of W_q X; here
tokens are rows. Q has the width of the keys, d_k (the slides print d), and a number of columns of its own, n_Q. Neither
bias nor 1/sqrt(d_k) is in the source, nor in the defaults.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_positive, check_tokens, visible_keys
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.spatial import unfold
from clearhead.shapes import Bool, Float

__all__ = ["LearnedQueryAttention"]


class LearnedQueryAttention(nn.Module):
    r"""Pool a set of any size to n_Q vectors.

    .. math:: o_j = \sum_i w_{ji} W_v x_i, \qquad w_{ji} \propto \exp(\text{scale}\; W_k x_i \cdot q_j)

    width: of a token x
    queries: n_Q, how many vectors come out, for any number of tokens
    key_width: d_k, of W_k x and of a learned query q_j; the tokens' own by default
    value_width: of W_v x and of the output; the tokens' own by default
    bias: whether the two maps add one; the source has none
    scale: 1.0 as in the source; None leaves it to the operator, which is 1/sqrt(d_k) for softmax attention
    operator: a function (q, k, v, *, mask, bias, scale), called with those that are given

    Without position codes in x and without masks it is invariant: the order of the tokens changes nothing.
    """

    def __init__(
        self,
        width: int,
        *,
        queries: int,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = False,
        scale: float | None = 1.0,
        operator: Callable[..., Tensor] = softmax_attention,
    ) -> None:
        super().__init__()
        key_width = width if key_width is None else key_width
        value_width = width if value_width is None else value_width
        check_positive(width=width, queries=queries, key_width=key_width, value_width=value_width)
        # With this spread the scores of unit keys have variance 1/d_k: at the start no token stands out.
        self.queries = nn.Parameter(torch.randn(queries, key_width) / math.sqrt(key_width))
        self.key = nn.Linear(width, key_width, bias=bias)
        self.value = nn.Linear(width, value_width, bias=bias)
        self.scale = scale
        self.operator = operator

    def forward(
        self,
        x: Float[Tensor, "*b m c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """What each learned query reads from the tokens, (..., n_Q, e); zeros where there is no token.

        mask: True where a query may look, broadcasts to (..., n_Q, m)
        key_mask: (..., m), True where there is a token, as `pad_sets` makes it
        bias: added to the scores, broadcasts to (..., n_Q, m)
        """
        check_tokens({"x": x}, {"x": self.key})
        seen = visible_keys(
            (*x.shape[:-2], len(self.queries), x.shape[-2]),
            mask=mask,
            key_mask=key_mask,
            causal=False,
            bias=bias,
            leading=x.ndim - 2,
            device=x.device,
        )
        options = {"mask": seen, "bias": bias, "scale": self.scale}
        given = {name: option for name, option in options.items() if option is not None}
        k, v = self.key(x), self.value(x)
        q = self.queries.to(k.dtype).expand(*x.shape[:-2], -1, -1)
        return self.operator(q, k, v, **given)

    def pool(
        self,
        x: Float[Tensor, "b ..."],
        *,
        channel_axis: int = 1,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n e"]:
        """Pool an image or a video, (b, c, *spatial) or (b, *spatial, c), to n_Q vectors: every position is a token.

        The positions are told apart by their channels alone: without position codes in them, an image and the same
        image with its pixels scrambled give the same vectors.
        """
        pooled: Tensor = self(unfold(x, channel_axis), key_mask=key_mask)
        return pooled
