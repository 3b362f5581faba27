"""What attention of tokens among themselves shares: maps of keys, values and outputs, its heads, and its masks."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from clearhead.modules.inputs import check_positive, check_tokens, checked_head_width, visible_keys
from clearhead.shapes import Bool, Float

__all__ = ["TokenAttention"]


class TokenAttention(nn.Module):
    """Several attentions side by side within one sequence, and a map of all their outputs. `attend` is what they do.

    width: of a token
    heads: how many
    head_width, value_width: of keys and of values inside each head; width / heads, and head_width, if None
    out_width: of the output; width if None
    bias, out_bias: whether the maps of inputs, and that of outputs, add one
    scale: 1/sqrt(head_width) if None
    operator: what `attend` calls
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int | None = None,
        value_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor],
    ) -> None:
        super().__init__()
        out_width = width if out_width is None else out_width
        head_width = checked_head_width(width, heads, head_width)
        value_width = head_width if value_width is None else value_width
        check_positive(value_width=value_width, out_width=out_width)
        self.heads, self.scale, self.operator = heads, scale, operator
        self.key = nn.Linear(width, heads * head_width, bias=bias)
        self.value = nn.Linear(width, heads * value_width, bias=bias)
        self.out = nn.Linear(heads * value_width, out_width, bias=out_bias)

    def forward(
        self,
        x: Float[Tensor, "*b n c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n o"]:
        """The output of every token, (..., n, out_width).

        mask: True where a token may look, broadcasts to (..., h, n, n)
        key_mask: (..., n), True where there is a token, as `pad_sets` makes it
        causal: whether a token sees only itself and those before it

        A token that may look nowhere gets the bias of W_o, or zeros without one.
        """
        check_tokens({"x": x}, {"x": self.key})
        n = x.shape[-2]
        seen = visible_keys(
            (*x.shape[:-2], self.heads, n, n),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            bias=None,
            leading=x.ndim - 2,
            device=x.device,
        )
        options = {"mask": seen, "scale": self.scale}
        given = {name: option for name, option in options.items() if option is not None}
        attended = self.attend(x, self.split(self.key(x)), self.split(self.value(x)), **given)
        joined: Tensor = self.out(attended.movedim(-3, -2).flatten(-2))
        return joined

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The outputs of every head, by its keys and values; x are the tokens that these were made from."""
        raise NotImplementedError

    def split(self, x: Tensor) -> Tensor:
        """(..., n, heads * width) as (..., heads, n, width)."""
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).movedim(-2, -3)

    def extra_repr(self) -> str:
        """What the maps do not show."""
        return f"heads={self.heads}"
