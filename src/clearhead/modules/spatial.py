"""Attention over images and video with learned projections (Ji and Xie, on higher-order data; Wang et al. 2018).

W_q, W_k, W_v and W_o act on the channels of one position at a time, so they are 1x1 convolutions. Wang et al.
(*Non-local Neural Networks*, arXiv 1711.07971) add the result to x; the caller does that here.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.spatial import fold, spatial_size, unfold
from clearhead.shapes import Bool, Float


class SpatialAttention(nn.Module):
    r"""Attention from every position of a query image to all positions of an image.

    .. math:: O = \operatorname{fold}_{\text{spatial size of } Q}\, W_o\, [H_1; \dots; H_M]

    with the heads of `MultiHeadAttention` over the unfolded tokens.

    in_channels: channels of the image x, which gives keys and values
    query_channels: channels of the query image; in_channels if None
    out_channels: channels of the output; query_channels if None
    channel_axis: 1 for (b, c, *spatial), -1 for (b, *spatial, c), of both images and of the output
    num_heads, head_dim, value_dim, num_kv_heads, bias, out_bias, scale, operator: as in `MultiHeadAttention`

    The output has the spatial size of the query image, which may be larger or smaller than x. Without position codes
    in the channels the output does not depend on where a position is.
    """

    def __init__(
        self,
        in_channels: int,
        num_heads: int = 1,
        *,
        query_channels: int | None = None,
        out_channels: int | None = None,
        channel_axis: int = 1,
        head_dim: int | Sequence[int] | None = None,
        value_dim: int | Sequence[int] | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = softmax_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channel_axis = channel_axis
        self.attention = MultiHeadAttention(
            in_channels if query_channels is None else query_channels,
            num_heads,
            kdim=in_channels,
            vdim=in_channels,
            head_dim=head_dim,
            value_dim=value_dim,
            out_dim=out_channels,
            num_kv_heads=num_kv_heads,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=operator,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        x: Float[Tensor, "b ..."],
        query: Float[Tensor, "b ..."] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "b m"] | None = None,
        attn_bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "b ..."]:
        """Return the output image, of the spatial size of `query`, which is x if None.

        mask, attn_bias: broadcast to (b, h, n, m), with positions in the order of `unfold`; a mask is True where a
            position may attend
        key_mask: (b, m), True at the visible positions of x
        """
        query = x if query is None else query
        tokens = self.attention(
            unfold(query, self.channel_axis),
            unfold(x, self.channel_axis),
            mask=mask,
            key_mask=key_mask,
            attn_bias=attn_bias,
        )
        return fold(tokens, spatial_size(query, self.channel_axis), self.channel_axis)

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"channel_axis={self.channel_axis}"
