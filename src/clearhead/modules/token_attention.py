r"""Multi-head attention within one sequence: symmetric and scaled attention (Teo and Nguyen 2024), and their base.

The source's symmetric attention drops W_Q, so a layer has three projections instead of four. The source has one
projection for keys and values together; here each has its own, as in the other modules.

In scaled attention (remark 3) the source's V^ is X W_V, and S is the source's: one matrix for each head, or one alpha
for a layer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import (
    check_sizes,
    check_tokens,
    combine_masks,
    join_heads,
    present,
    resolve_head_dim,
    split_heads,
)
from clearhead.operators.learned_scaling import Form, Scaled
from clearhead.operators.scaled import Layout
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float


class TokenAttention(nn.Module):
    """Multi-head attention within one sequence. A subclass defines `attend`.

    embed_dim: width of the tokens
    num_heads: number of heads
    head_dim: width of keys in each head; embed_dim / num_heads if None
    value_dim: width of values in each head; head_dim if None
    out_dim: width of the output; embed_dim if None
    bias, out_bias: True for a bias in the input projections, and in the output projection
    scale: factor of the scores; 1/sqrt(head_dim) if None
    operator: the function that `attend` calls; its options that are None are not passed
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
        super().__init__()
        out_dim = embed_dim if out_dim is None else out_dim
        head_dim = resolve_head_dim(embed_dim, num_heads, head_dim)
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(value_dim=value_dim, out_dim=out_dim)
        self.num_heads, self.scale, self.operator = num_heads, scale, operator
        self.key = nn.Linear(embed_dim, num_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.value = nn.Linear(embed_dim, num_heads * value_dim, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(num_heads * value_dim, out_dim, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "*b n c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n o"]:
        """Return the output of every token, (..., n, out_dim).

        mask: True where a token may attend, broadcasts to (..., h, n, n)
        key_mask: (..., n), True at tokens and False at padding, as `pad_sets` returns it
        causal: True if a token sees only itself and the tokens before it

        A token without visible keys gets the bias of the output projection, or zeros without one.
        """
        check_tokens({"x": x}, {"x": self.key})
        combined = combine_masks(x, x, self.num_heads, mask=mask, key_mask=key_mask, causal=causal)
        k, v = (split_heads(projected, self.num_heads) for projected in (self.key(x), self.value(x)))
        out: Tensor = self.out(join_heads(self.attend(x, k, v, **present(mask=combined, scale=self.scale))))
        return out

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return the outputs of the heads for keys and values (..., h, n, width) projected from the tokens x."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"num_heads={self.num_heads}"


class SymmetricAttention(TokenAttention):
    r"""Multi-head symmetric attention.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = A(W_k^{(i)} X, W_v^{(i)} X)

    operator: A, a function (k, v, *, mask, scale) that uses keys as queries; None options are not passed

    The other arguments are those of `TokenAttention`.
    """

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Call the operator with keys and values."""
        return self.operator(k, v, **options)


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
        return self.operator(split_heads(self.query(x), self.num_heads), k, v, **options)
