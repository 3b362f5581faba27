"""The base of multi-head self-attention modules: projections of keys, values and outputs, heads and masks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_sizes, check_tokens, combine_masks, resolve_head_dim
from clearhead.shapes import Bool, Float

__all__ = ["TokenAttention"]


class TokenAttention(nn.Module):
    """Multi-head attention within one sequence. A subclass defines `attend`.

    embed_dim: width of the tokens
    num_heads: number of heads
    head_dim: width of keys in each head; embed_dim / num_heads if None
    value_dim: width of values in each head; head_dim if None
    out_dim: width of the output; embed_dim if None
    bias, out_bias: True for a bias in the input projections, and in the output projection
    scale: factor of the scores; 1/sqrt(head_dim) if None
    operator: the function that `attend` calls
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
        operator: Callable[..., Tensor],
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
        n = x.shape[-2]
        combined = combine_masks(
            (*x.shape[:-2], self.num_heads, n, n),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            attn_bias=None,
            leading=x.ndim - 2,
            device=x.device,
        )
        options = {"mask": combined, "scale": self.scale}
        options = {name: option for name, option in options.items() if option is not None}
        attended = self.attend(x, self.split_heads(self.key(x)), self.split_heads(self.value(x)), **options)
        out: Tensor = self.out(attended.movedim(-3, -2).flatten(-2))
        return out

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return the outputs of the heads for keys and values (..., h, n, width) projected from the tokens x."""
        raise NotImplementedError

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (..., n, heads * width) as (..., heads, n, width)."""
        return x.reshape(*x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads).movedim(-2, -3)

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"num_heads={self.num_heads}"
