r"""Token statistics self-attention as layers (ToST; Wu et al. 2025, arXiv 2412.17810), as released for images and text.

They take time and memory that grow with the number of tokens, not with its square, and have no queries or keys that a
theory of attention could look at.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_positive, check_tokens, checked_head_width
from clearhead.operators.token_statistics import causal_token_statistics_attention, token_statistics_attention
from clearhead.shapes import Bool, Float, ShapeError

__all__ = ["CausalTokenStatisticsAttention", "TokenStatisticsAttention"]


class TokenStatisticsAttention(nn.Module):
    """`token_statistics_attention` between a map of tokens into heads and one back: the released vision code's.

    width: of a token
    heads, head_width: how many, and of how many axes each; width / heads if None

    It owns U without a bias, a map of outputs with one, and the sharpness of each head, which starts at one. Its output
    is meant to be added to the tokens, and pulls them towards zero where a head's axes are full.
    """

    def __init__(self, width: int, *, heads: int, head_width: int | None = None) -> None:
        super().__init__()
        head_width = checked_head_width(width, heads, head_width)
        self.heads = heads
        self.subspaces = nn.Linear(width, heads * head_width, bias=False)
        self.sharpness = nn.Parameter(torch.ones(heads))
        self.out = nn.Linear(heads * head_width, width)

    def forward(
        self, x: Float[Tensor, "*b n d"], *, key_mask: Bool[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b n d"]:
        """The output of every token. key_mask: (..., n), True where there is a token."""
        return self._between_maps(x, token_statistics_attention, key_mask=key_mask)

    def _between_maps(self, x: Tensor, attend: Callable[..., Tensor], **options: Tensor | None) -> Tensor:
        check_tokens({"x": x}, {"x": self.subspaces})
        w = self.subspaces(x).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        attended = attend(w, sharpness=self.sharpness, **options)
        out: Tensor = self.out(attended.movedim(-3, -2).flatten(-2))
        return out

    def extra_repr(self) -> str:
        """What the maps do not show."""
        return f"heads={self.heads}"


class CausalTokenStatisticsAttention(TokenStatisticsAttention):
    """`causal_token_statistics_attention` between the same maps: the released language code's.

    tokens: the longest input, for the layer learns a number for each head and place, which starts at zero
    """

    def __init__(self, width: int, *, heads: int, tokens: int, head_width: int | None = None) -> None:
        super().__init__(width, heads=heads, head_width=head_width)
        check_positive(tokens=tokens)
        self.bias = nn.Parameter(torch.zeros(heads, tokens))

    def forward(
        self, x: Float[Tensor, "*b n d"], *, key_mask: Bool[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b n d"]:
        """The output of every token, by itself and those before it. key_mask: (..., n), True where there is one."""
        n = x.shape[-2] if x.ndim >= 2 else 0
        if n > self.bias.shape[1]:
            raise ShapeError(f"expected at most {self.bias.shape[1]} tokens; got x {tuple(x.shape)}")
        return self._between_maps(x, causal_token_statistics_attention, key_mask=key_mask, bias=self.bias[:, :n])
