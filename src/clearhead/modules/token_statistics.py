r"""Token statistics self-attention (ToST; Wu et al. 2025, arXiv 2412.17810), as released for images and for text.

Time and memory grow linearly with the number of tokens. There are no queries and keys that a theory of attention could
measure.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_sizes, check_tokens, join_heads, resolve_head_dim, split_heads
from clearhead.operators.token_statistics import causal_token_statistics_attention, token_statistics_attention
from clearhead.shapes import Bool, Float, ShapeError


class TokenStatisticsAttention(nn.Module):
    """`token_statistics_attention` between an input and an output projection: the layer of the released vision code.

    embed_dim: width of the tokens
    num_heads, head_dim: the number of heads, and the axes of each; embed_dim / num_heads if None

    The parameters are U without a bias, an output projection with one, and the sharpness of each head, initially one.
    The output is meant to be added to the tokens, and pulls them towards zero along axes with a large second moment.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        width = num_heads * resolve_head_dim(embed_dim, num_heads, head_dim)
        self.num_heads = num_heads
        self.subspaces = nn.Linear(embed_dim, width, bias=False, device=device, dtype=dtype)
        self.sharpness = nn.Parameter(torch.ones(num_heads, device=device, dtype=dtype))
        self.out = nn.Linear(width, embed_dim, device=device, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "*b n d"], *, key_mask: Bool[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b n d"]:
        """Return the output of every token. key_mask: (..., n), True at tokens and False at padding."""
        return self._project(x, token_statistics_attention, key_mask=key_mask)

    def _project(self, x: Tensor, attend: Callable[..., Tensor], **options: Tensor | None) -> Tensor:
        check_tokens({"x": x}, {"x": self.subspaces})
        attended = attend(split_heads(self.subspaces(x), self.num_heads), sharpness=self.sharpness, **options)
        out: Tensor = self.out(join_heads(attended))
        return out

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"num_heads={self.num_heads}"


class CausalTokenStatisticsAttention(TokenStatisticsAttention):
    """`causal_token_statistics_attention` between the same projections: the layer of the released language code.

    max_tokens: the longest input; the layer learns one number for each head and position, initially zero
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        max_tokens: int,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim=head_dim, device=device, dtype=dtype)
        check_sizes(max_tokens=max_tokens)
        self.bias = nn.Parameter(torch.zeros(num_heads, max_tokens, device=device, dtype=dtype))

    def forward(
        self, x: Float[Tensor, "*b n d"], *, key_mask: Bool[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b n d"]:
        """Return the output of every token, from itself and the tokens before it.

        key_mask: (..., n), True at tokens and False at padding
        """
        n = x.shape[-2] if x.ndim >= 2 else 0
        if n > self.bias.shape[1]:
            raise ShapeError(f"expected at most max_tokens = {self.bias.shape[1]} tokens; got x {tuple(x.shape)}")
        return self._project(x, causal_token_statistics_attention, key_mask=key_mask, bias=self.bias[:, :n])
