r"""Self-attention of one head (Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, equation (3)).

The slides write tokens as columns, A_S(X) = W_v X softmax((W_k X)^T W_q X); here they are rows. The slides have neither
bias nor 1/sqrt(d_k), and so have the defaults.
"""

from collections.abc import Callable

from torch import Tensor, nn

from clearhead.modules.inputs import check_positive, check_tokens, visible_keys
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float

__all__ = ["SelfAttention"]


class SelfAttention(nn.Module):
    r"""Every token reads from all tokens of its own set.

    .. math:: o_j = \sum_i w_{ji} W_v x_i, \qquad w_{ji} \propto \exp(\text{scale}\; W_k x_i \cdot W_q x_j)

    width: of a token x
    key_width: d_k, of W_q x and W_k x; the tokens' own by default
    value_width: of W_v x and of the output; the tokens' own by default
    bias: whether the three maps add one; the source has none
    scale: 1.0 as in the source; None leaves it to the operator, which is 1/sqrt(d_k) for softmax attention
    operator: a function (q, k, v, *, mask, bias, scale), called with those that are given

    Without position codes in x and without masks it is equivariant: permuted tokens give the same outputs, permuted.
    """

    def __init__(
        self,
        width: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = False,
        scale: float | None = 1.0,
        operator: Callable[..., Tensor] = softmax_attention,
    ) -> None:
        super().__init__()
        key_width = width if key_width is None else key_width
        value_width = width if value_width is None else value_width
        check_positive(width=width, key_width=key_width, value_width=value_width)
        self.query = nn.Linear(width, key_width, bias=bias)
        self.key = nn.Linear(width, key_width, bias=bias)
        self.value = nn.Linear(width, value_width, bias=bias)
        self.scale = scale
        self.operator = operator

    def forward(
        self,
        x: Float[Tensor, "*b n c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """The output of every token, (..., n, e).

        mask: True where a token may look, broadcasts to (..., n, n)
        key_mask: (..., n), True where there is a token, as `pad_sets` makes it
        causal: whether a token sees only itself and those before it
        bias: added to the scores, broadcasts to (..., n, n)
        """
        check_tokens({"x": x}, {"x": self.query})
        n = x.shape[-2]
        seen = visible_keys(
            (*x.shape[:-1], n),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            bias=bias,
            leading=x.ndim - 2,
            device=x.device,
        )
        options = {"mask": seen, "bias": bias, "scale": self.scale}
        given = {name: option for name, option in options.items() if option is not None}
        return self.operator(self.query(x), self.key(x), self.value(x), **given)
