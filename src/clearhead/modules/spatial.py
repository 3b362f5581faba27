"""Attention over images and video with learned maps (Ji and Xie, the part on higher-order data; Wang et al. 2018).

W_q, W_k, W_v and W_o act on the channels of one position at a time, so they are 1x1 convolutions. Wang et al.
(*Non-local Neural Networks*, arXiv 1711.07971) add the result to x; that is left to the caller.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.spatial import fold, spatial_size, unfold
from clearhead.shapes import Bool, Float

__all__ = ["SpatialAttention"]


class SpatialAttention(nn.Module):
    r"""Every position of a query image reads from all positions of an image.

    .. math:: O = \operatorname{fold}_{\text{spatial size of } Q}\, W_o\, [H_1; \dots; H_M]

    with the heads of `MultiHeadAttention` over the unfolded tokens, one head by default.

    channels: of the image x that is read from
    query_channels: of the query image; `channels` if None
    out_channels: of the output; `query_channels` if None
    channel_axis: 1 for (b, c, *spatial), -1 for (b, *spatial, c), of both images and of the output
    heads, head_widths, value_widths, key_heads, bias, out_bias, scale, operator: as in `MultiHeadAttention`

    The output has the spatial size of the query image: a larger one than x samples up, a smaller one down. Without
    position codes in the channels it does not know where a position is.
    """

    def __init__(
        self,
        channels: int,
        *,
        query_channels: int | None = None,
        out_channels: int | None = None,
        channel_axis: int = 1,
        heads: int = 1,
        head_widths: int | Sequence[int] | None = None,
        value_widths: int | Sequence[int] | None = None,
        key_heads: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = softmax_attention,
    ) -> None:
        super().__init__()
        self.channel_axis = channel_axis
        self.attention = MultiHeadAttention(
            channels if query_channels is None else query_channels,
            heads=heads,
            key_input_width=channels,
            value_input_width=channels,
            head_widths=head_widths,
            value_widths=value_widths,
            out_width=out_channels,
            key_heads=key_heads,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=operator,
        )

    def forward(
        self,
        x: Float[Tensor, "b ..."],
        query: Float[Tensor, "b ..."] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "b m"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "b ..."]:
        """The output image, of the spatial size of `query`, which is x itself if None.

        mask, bias: broadcast to (b, h, n, m), with positions counted as `unfold` counts them; a mask is True where a
            position may look
        key_mask: (b, m), True at the positions of x that can be seen
        """
        query = x if query is None else query
        tokens = self.attention(
            unfold(query, self.channel_axis),
            unfold(x, self.channel_axis),
            mask=mask,
            key_mask=key_mask,
            bias=bias,
        )
        return fold(tokens, spatial_size(query, self.channel_axis), self.channel_axis)

    def extra_repr(self) -> str:
        """Where the channels are."""
        return f"channel_axis={self.channel_axis}"
